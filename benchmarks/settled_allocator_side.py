"""One side of `settled_allocator.py`: plain steps of a job in a process of its own, timed in turns with the other side.

The spec: `target`, `settings`, `turn` (a pipe).
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from memfit.jobs import Job, run_step
from memfit.launch import allocator_here, emit, worker_main
from memfit.monitor.measure import measure_step
from memfit.prove.turns import Turn
from memfit.recipes import prepare
from memfit.train.enclosure import enclosed

WARM_STEPS = 2
CONVOLUTIONS = f"{__file__}:convolutions"


def work(spec: dict[str, Any]) -> Mapping[str, Any]:
    """Warm steps, timed ones, then the tensor peak of one more by the profiler, after resident growth was noted."""
    make = prepare(spec["target"])
    with enclosed(None, enforce=False) as enclosure:
        emit("warm", pid=os.getpid())
        job = make(**spec["settings"])
        for _ in range(WARM_STEPS):
            run_step(job, job.batch)
        emit("at_line")
        steps, turns = 0, Turn(spec["turn"])
        faults = _faults()
        while turns.next():
            _timed_step(job)
            steps += 1
        faults = (_faults() - faults) // max(1, steps)
        enclosure.end()
        peak_bytes = measure_step(job, lambda: run_step(job, job.batch))
        return {"allocator": allocator_here(), "tensor_peak_bytes": peak_bytes, "faults_a_step": faults,
                "resident_growth_bytes": enclosure.growth_bytes}


def _timed_step(job: Job) -> None:
    wall, processor = time.perf_counter(), time.process_time()
    run_step(job, job.batch)
    emit("timed", step_s=time.perf_counter() - wall, cpu_s=time.process_time() - processor)


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def convolutions(batch: int = 32, image: int = 64, width: int = 32, depth: int = 8) -> Job:
    """Convolutions, batch normalisation and ReLU in a row, halving twice: large tensors of few sizes."""
    layers: list[nn.Module] = []
    for number in range(depth):
        stride = 2 if number in (2, 5) else 1
        layers += [nn.Conv2d(width if number else 3, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
        data = {"x": torch.randn(batch, 3, image, image), "labels": torch.randint(0, 10, (batch,))}
    return Job(model, _loss, data, partial(torch.optim.AdamW, lr=1e-3))


def _loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["labels"])


if __name__ == "__main__":
    sys.exit(worker_main(work))
