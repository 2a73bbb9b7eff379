"""Ground truth on the CPU: peak tensor bytes of the first and the second step of a job, by the profiler's memory events
plus the bytes resident before the step. From memfit it takes only what builds the job and applies the choices.

    python benchmarks/measure_cpu.py TARGET SETTINGS_JSON CHOICES_JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from memfit.apply import apply_choices
from memfit.core.strategy import Choice
from memfit.jobs import run_step
from memfit.recipes import load


def leaves(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for inner in tree.values():
            yield from leaves(inner)
    elif isinstance(tree, (list, tuple)):
        for inner in tree:
            yield from leaves(inner)
    elif hasattr(tree, "data") and isinstance(tree.data, dict):
        yield from leaves(tree.data)


def resident_bytes(job: Any) -> int:
    states = [list(state.values()) for state in job.optimizer.state.values()]
    seen = {}
    for tensor in [*job.model.parameters(), *job.model.buffers(), *leaves(job.batch), *leaves(states)]:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


def step_peak(job: Any) -> int:
    before = resident_bytes(job)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run_step(job, job.batch)
    current = highest = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            highest = max(highest, current)
    return before + highest


def main(target: str, settings: str, choices: str) -> None:
    torch.manual_seed(0)
    job = load(target, json.loads(settings))
    _ = job.model, job.optimizer
    apply_choices(job, [Choice(name, inner) for name, inner in json.loads(choices)])
    print(json.dumps({"first_bytes": step_peak(job), "steady_bytes": step_peak(job)}))


if __name__ == "__main__":
    main(*sys.argv[1:4])
