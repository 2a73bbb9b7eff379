"""How long tracing, planning and estimating take on this machine: seconds in-process, imports excluded.

    python benchmarks/speed_cpu.py         writes results/speed_cpu.csv; medians of several runs, processor time beside
"""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from memfit.jobs import Job, batches, run_step
from memfit.plan import estimate_job, make_plan
from memfit.recipes import load
from memfit.trace import FakeWorld, fake_job, trace_step
from shapes import llama_7b

RESULTS = Path(__file__).parent / "results" / "speed_cpu.csv"
Row = tuple[str, float, float, float]


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall and processor seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def medians(name: str, target_s: float, work: Callable[[], Any], count: int) -> Row:
    runs = [timed(work) for _ in range(count)]
    row = (name, statistics.median(wall for wall, _ in runs), statistics.median(cpu for _, cpu in runs), target_s)
    print(f"{row[0]:64s} {row[1]:7.3f} s wall {row[2]:7.3f} s cpu   aim {row[3]}", flush=True)
    return row


def bert() -> Job:
    job = load("bert-base", {})
    job._optimizer = lambda parameters: torch.optim.AdamW(parameters, foreach=False)
    return job


def first_step() -> None:
    world = FakeWorld()
    trace_step(fake_job(live, world), world)


def fake_alone() -> Callable[[], None]:
    """The same step under torch's own FakeTensorMode, nothing recorded."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        job = bert()
        made = Job(job.model, job.loss, batches.map_tensors(job.batch, mode.from_tensor), job.optimizer)
        made.weight = lambda batch: 1.0

    def step() -> None:
        with mode:
            run_step(made, made.batch)

    step()
    return step


def trace_rows() -> list[Row]:
    world = FakeWorld()
    fake = fake_job(live, world)
    trace_step(fake, world)
    alone = fake_alone()
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(9):  # side by side, in turns
        ours.append(timed(lambda: trace_step(fake, world))[1])
        theirs.append(timed(alone)[1])
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    print(f"traced / FakeTensor alone, processor time, paired median of 9: {ratio:.3f}")
    return [medians("trace BERT-base 16x128, second step, model fake", 0.5, lambda: trace_step(fake, world), 5),
            medians("the same step under FakeTensorMode alone", 0.0, alone, 5),
            ("traced / FakeTensor alone (paired, cpu)", ratio, ratio, 1.3),
            medians("BERT-base, conversion and first step", 1.2, first_step, 3)]


def plan_rows() -> list[Row]:
    rows = []
    for name in ("bert-base", "vit-base", "resnet50", "gpt2"):
        job = load(name, {})
        rows.append(medians(f"plan {name} at 50%", 10.0, lambda job=job: make_plan(job, budget="50%"), 1))
    return rows


def help_row() -> Row:
    words = [sys.executable, "-m", "memfit", "--help"]
    return medians("memfit --help (a fresh process)", 0.3, lambda: subprocess.run(words, capture_output=True), 7)


def main() -> None:
    rows = [help_row(), *trace_rows(), medians("estimate a Llama-7B shape, seq 2048, AdamW", 5.0,
                                               lambda: estimate_job(llama_7b(), device="cpu"), 1), *plan_rows()]
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["what", "wall_s", "cpu_s", "aim_s", "torch", "threads"])
        writer.writerows([*row, torch.__version__, torch.get_num_threads()] for row in rows)


live = bert()

if __name__ == "__main__":
    main()
