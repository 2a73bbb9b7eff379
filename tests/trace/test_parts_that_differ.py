"""Micro-batches whose forwards go different ways: a mask is only used where it masks something."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from memfit.apply import apply_choices
from memfit.core.strategy import Choice
from memfit.jobs import Job, run_step
from memfit.monitor.measure import measure_step
from memfit.plan import estimate_job

KIB = 2**10


class Masking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 512), nn.Linear(512, 64)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        inside = self.up(x)
        if not bool(mask.all()):  # one more tensor of this size is saved for backward
            inside = torch.tanh(inside) * mask[..., None]
        return self.down(torch.relu(inside))


def job(masked: tuple[int, ...]) -> Job:
    torch.manual_seed(0)
    mask = torch.ones(8, 32, dtype=torch.bool)
    mask[list(masked), 16:] = False
    batch = {"x": torch.randn(8, 32, 64), "mask": mask}
    return Job(Masking(), lambda net, data: net(data["x"], data["mask"]).square().mean(), batch,
               partial(torch.optim.AdamW, lr=1e-3))


@pytest.mark.parametrize("masked", [(0, 5), (0,), (1, 6), ()])
def test_predicted_as_measured(masked: tuple[int, ...]) -> None:
    choices = [Choice("micro-batches", {"count": 8})]
    made = job(masked)
    apply_choices(made, choices)
    run_step(made, made.batch)
    measured = measure_step(made, lambda: run_step(made, made.batch))
    predicted = estimate_job(job(masked), choices=choices).peak.allocated_bytes
    assert measured - 4 * KIB <= predicted
    assert masked == (0,) or predicted <= measured + 4 * KIB  # the first way may come again, and here it does not
