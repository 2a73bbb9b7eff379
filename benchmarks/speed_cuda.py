"""How long a card's prediction takes on this machine without one.

    python benchmarks/speed_cuda.py         prints and keeps results/speed_cuda.csv; exit 1 where a median is above its aim

In-process: building the job aside, both steps traced, and the replay; the first time in a fresh process (answers of cuDNN
kept on disk, as after a first use) and later times. Through the command line: a fresh process, imports included.
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "speed_cuda.csv"
CARD, LARGE_CARD, RUNS = "rtx3060", "h100-sxm", 5
NAMES = ("bert-base", "vit-base", "resnet50", "gpt2")
LLAMA = "Llama-7B shape, seq 2048"
FIELDS = ("what", "wall_s", "cpu_s", "aim_s", "torch", "threads")
Pair = tuple[float, float]
Row = tuple[str, float, float, float]


def work(name: str) -> None:
    """In a fresh process: one line of JSON, wall and processor seconds of each run."""
    import torch

    from memfit.hardware import find_device
    from memfit.recipes import load
    from memfit.simulate import simulate
    from memfit.trace import trace_job
    from memfit.trace.cuda import target_of
    from shapes import llama_7b

    llama = name == LLAMA
    device = find_device(LARGE_CARD if llama else CARD)
    found: list[Pair] = []
    for _ in range(RUNS):
        job = llama_7b() if llama else load(name, {})
        wall, cpu = time.perf_counter(), time.process_time()
        traces = trace_job(job, target_of(device))
        simulate(traces.steady, device, first=traces.first, torch_version=torch.__version__)
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    print("RUNS " + json.dumps([found, torch.__version__, torch.get_num_threads()]))


def in_process(name: str) -> tuple[list[Row], str, int]:
    aim = 5.0 if name == LLAMA else 1.5
    done = subprocess.run([sys.executable, __file__, "--work", name], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RUNS "))
    (first, *later), version, threads = json.loads(line[5:])
    again = tuple(statistics.median(values) for values in zip(*later, strict=True))
    rows = [(f"{name}: first in the process", *first, aim), (f"{name}: again, median of {len(later)}", *again, aim)]
    return rows, version, threads


def command(name: str) -> Row:
    """`memfit estimate` in a fresh process; median of three. Processor time is the child's."""
    import resource

    words = [sys.executable, "-m", "memfit", "estimate", name, "--device", CARD]
    walls, cpus = [], []
    for _ in range(3):
        wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append(time.perf_counter() - wall)
        cpus.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return f"memfit estimate {name} --device {CARD}", statistics.median(walls), statistics.median(cpus), 8.0


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["--work"]:
        work(words[1])
        return 0
    rows: list[tuple[object, ...]] = []
    version, threads = "", 0
    for name in (*NAMES, LLAMA):
        found, version, threads = in_process(name)
        rows += found
    rows += [command(name) for name in NAMES]
    for what, wall, cpu, aim in rows:
        print(f"{what:52s} {wall:7.3f} s wall {cpu:7.3f} s cpu   aim {aim}")
    with RESULTS.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        writer.writerows([*row, version, threads] for row in rows)
    return 1 if any(wall > aim for _, wall, _, aim in rows) else 0  # type: ignore[operator]


if __name__ == "__main__":
    sys.exit(main())
