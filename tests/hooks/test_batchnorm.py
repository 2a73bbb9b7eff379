"""Recomputation leaves running statistics and counters alone, and gives the same bits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from stepping import stepped
from torch import nn

from memfit.core.strategy import Undo
from memfit.hooks import frozen_statistics, override_forward, recomputed

NORMS: dict[str, Any] = {
    "plain": lambda: nn.BatchNorm1d(4),
    "cumulative": lambda: nn.BatchNorm1d(4, momentum=None),
    "not affine": lambda: nn.BatchNorm1d(4, affine=False),
    "without statistics": lambda: nn.BatchNorm1d(4, track_running_stats=False),
    "evaluating": lambda: nn.BatchNorm1d(4).eval(),
    "synchronised": lambda: nn.SyncBatchNorm(4),
    "instance": lambda: nn.InstanceNorm1d(4, track_running_stats=True, affine=True),
}


def train(module: nn.Module) -> list[torch.Tensor]:
    return stepped(module, lambda: torch.randn(5, 4, 6), steps=4)


@pytest.mark.parametrize("kind", NORMS)
def test_checkpointed_normalisation_is_bitwise(kind: str) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv1d(4, 4, 1), NORMS[kind](), nn.ReLU(), nn.Dropout(0.3), nn.Conv1d(4, 4, 1))
    other = copy.deepcopy(plain)
    override_forward(other, recomputed, Undo())
    for one, two in zip(train(plain), train(other), strict=True):
        assert torch.equal(one, two)


def test_statistics_come_back_as_the_same_tensors_even_after_a_failure() -> None:
    module = nn.BatchNorm1d(4)
    before = dict(module.named_buffers())
    with pytest.raises(ZeroDivisionError), frozen_statistics(module):
        module(torch.randn(3, 4))
        raise ZeroDivisionError
    for name, buffer in module.named_buffers():
        assert buffer is before[name]
    assert int(module.num_batches_tracked or 0) == 0
    assert torch.equal(before["running_mean"], torch.zeros(4))
