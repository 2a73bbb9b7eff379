"""Memory on disk: predicted and measured peaks, and what the transfers cost, against plain in the same process.

    python benchmarks/offload.py           run what is missing (resumable); results/offload.csv and offload.md

Both jobs step in turns in one process with the settled allocator, so that what else runs on the machine meets both. The time is
processor time (user and system) of the fastest step, in which another process's work does not count; wall time stands beside.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from machine import heading, table
from memfit.apply import apply_choices
from memfit.core.device import Device
from memfit.core.strategy import Choice
from memfit.jobs import run_step
from memfit.jobs.randomness import seed_everything
from memfit.launch.allocator import settled_environment
from memfit.monitor.measure import measure_step
from memfit.plan.explore import Candidate, Explorer
from memfit.recipes import load
from results_file import append_rows, read_rows

RESULTS = Path(__file__).parent / "results" / "offload.csv"
FIELDS = ["target", "settings", "choices", "plain_bytes", "predicted_bytes", "measured_bytes", "disk_bytes", "processor_time",
          "wall_time", "steps"]
CPU = Device("cpu", "cpu", 24 << 30, {"float32": 1e11}, 1e10, overhead_s=2e-6)
ACTIVATIONS = ("offload-activations", {"place": "disk", "least_bytes": 65536})
OPTIMIZER, IN_BACKWARD, FUSED = ("offload-optimizer", {"place": "disk"}), ("step-in-backward", {}), ("fused-step", {})
LOSS = ("chunked-loss", {"rows": 256, "module": "lm_head"})
Mix = tuple[tuple[str, dict[str, Any]], ...]
ROWS: tuple[tuple[str, dict[str, Any], Mix, int], ...] = (
    ("vit-mini", {"batch": 128}, (("offload-activations", {"place": "disk", "least_bytes": 5000000}),), 10),
    ("vit-mini", {"batch": 128}, (ACTIVATIONS,), 10),
    ("gpt-mini", {"batch": 8}, (ACTIVATIONS,), 6),
    ("gpt-mini", {"batch": 8}, (ACTIVATIONS, OPTIMIZER, IN_BACKWARD), 6),
    ("resnet18", {"batch": 16, "image": 128}, (ACTIVATIONS,), 6),
    ("gpt2", {"batch": 1}, (OPTIMIZER,), 3),
    ("gpt2", {"batch": 1}, (OPTIMIZER, IN_BACKWARD), 3),
    ("gpt2", {"batch": 1}, (OPTIMIZER, IN_BACKWARD, FUSED), 3),
    ("gpt2", {}, (OPTIMIZER, IN_BACKWARD, LOSS, ACTIVATIONS, FUSED), 3),
)


def key(target: str, settings: dict[str, Any], mix: Mix) -> tuple[str, str, str]:
    return target, json.dumps(settings), json.dumps(mix)


def run(target: str, settings: dict[str, Any], mix: Mix, steps: int) -> dict[str, Any]:
    """One row, in this process."""
    choices = [Choice(name, inner) for name, inner in mix]
    explorer = Explorer(load(target, settings), CPU)
    seen = explorer.candidate(choices)
    assert isinstance(seen, Candidate), seen
    jobs = []
    for some in ((), choices):
        seed_everything(0)
        job = load(target, settings)
        apply_choices(job, some)
        jobs.append(job)
    times: list[list[tuple[float, float]]] = [[], []]
    for number in range(steps + 1):
        for job, own in zip(jobs, times, strict=True):
            busy, began = time.process_time(), time.perf_counter()
            run_step(job, job.batch)
            if number:
                own.append((time.process_time() - busy, time.perf_counter() - began))
    least = [[min(one) for one in zip(*own, strict=True)] for own in times]
    plain, planned = (measure_step(job, lambda job=job: run_step(job, job.batch)) for job in jobs)
    return {"plain_bytes": plain, "predicted_bytes": seen.simulation.peak.allocated_bytes, "measured_bytes": planned,
            "disk_bytes": seen.simulation.away["disk"], "processor_time": f"{least[1][0] / least[0][0]:.2f}",
            "wall_time": f"{least[1][1] / least[0][1]:.2f}", "steps": steps}


def main() -> None:
    if len(sys.argv) == 2:
        row = ROWS[int(sys.argv[1])]
        names = zip(FIELDS[:3], key(*row[:3]), strict=True)
        append_rows(RESULTS, FIELDS, [{**dict(names), **run(*row)}])
        return
    known = {(row["target"], row["settings"], row["choices"]) for row in read_rows(RESULTS)}
    for place, row in enumerate(ROWS):
        if key(*row[:3]) not in known:
            subprocess.run([sys.executable, __file__, str(place)], env=settled_environment(), check=True)
    rows = [[row["target"], row["settings"], ", ".join(name for name, _ in json.loads(row["choices"])),
             *(f"{int(row[name]) / 2**20:.1f}" for name in ("plain_bytes", "predicted_bytes", "measured_bytes", "disk_bytes")),
             row["processor_time"], row["wall_time"]] for row in read_rows(RESULTS)]
    head = ["job", "settings", "strategies", "plain MiB", "predicted MiB", "measured MiB", "on disk MiB", "processor time",
            "wall time"]
    lines = [*heading("Memory on disk", "python benchmarks/offload.py"), *table(head, rows)]
    RESULTS.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
