"""Jobs that keep their gradients after the step: predicted under every mix, and told what that costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from memfit.apply import apply_choices
from memfit.core.device import Device
from memfit.core.strategy import Choice
from memfit.jobs import Job, run_step
from memfit.monitor.measure import measure_step
from memfit.plan import make_plan
from memfit.plan.explore import Candidate, Explorer

CPU = Device("cpu", "cpu", 8 << 30, {"float32": 1e11}, 1e10, overhead_s=2e-6)
MIXES = ([Choice("micro-batches", {"count": 2})], [], [Choice("checkpoint", {"modules": ["0", "1", "2", "3"]})],
         [Choice("micro-batches", {"count": 4})])


def job(zero_grad: Any) -> Job:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()) for _ in range(4)]
    return Job(nn.Sequential(*blocks), lambda model, x: model(x).square().mean(), torch.randn(512, 256), torch.optim.SGD,
               zero_grad=zero_grad)


@pytest.mark.parametrize("zero_grad", ["after_step", "before_forward", "before_backward"])
def test_mixes_are_predicted_with_the_gradients_that_the_job_keeps(zero_grad: str) -> None:
    explorer = Explorer(job(zero_grad), CPU)
    for choices in MIXES:
        real = job(zero_grad)
        apply_choices(real, choices)
        run_step(real, real.batch)
        measured = measure_step(real, lambda real=real: run_step(real, real.batch))
        candidate = explorer.candidate(choices)
        assert isinstance(candidate, Candidate)
        assert abs(candidate.simulation.peak.allocated_bytes - measured) <= 0.01 * measured, choices


def test_a_plan_says_what_letting_gradients_go_would_give() -> None:
    plans = {place: make_plan(job(place), budget="1GiB", device=CPU) for place in
             ("after_step", "before_forward", "before_backward")}
    told = {place: [note for note in plan.notes if "zero_grad" in note] for place, plan in plans.items()}
    assert not told["after_step"] and not told["before_forward"]  # freed before anything else: it costs nothing at the peak
    assert len(told["before_backward"]) == 1
    freed = plans["before_backward"].predicted.peak.high_bytes - plans["after_step"].predicted.peak.high_bytes
    assert freed > 0
    assert f"{plans['after_step'].predicted.peak.high_bytes / 2**20:.1f} MiB in place of" in told["before_backward"][0]
