"""Recurrent cells on a card: two products and one kernel, whose workspace is kept beside the sums of the gates."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memfit.core.trace import Op, Trace
from memfit.hardware import find_device
from memfit.jobs import Job
from memfit.trace import trace_job

CARD = find_device("rtx3060")
ROWS, INPUT, HIDDEN, STEPS = 64, 24, 256, 3


class Unrolled(nn.Module):
    def __init__(self, kind: str, bias: bool) -> None:
        super().__init__()
        self.cell, self.kind = getattr(nn, kind)(INPUT, HIDDEN, bias=bias), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for _ in range(STEPS):
            state = self.cell(x, state)
        return state[0] if self.kind == "LSTMCell" else state


def step(kind: str, bias: bool = True) -> Trace:
    job = Job(lambda: Unrolled(kind, bias), lambda model, x: model(x).square().mean(), torch.empty(ROWS, INPUT),
              lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    return trace_job(job, CARD).steady


def named(trace: Trace, text: str) -> list[Op]:
    return [op for op in trace.ops if text in op.name]


@pytest.mark.parametrize(("kind", "gates", "kept"), [("LSTMCell", 4, 4), ("GRUCell", 3, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_is_one_kernel_each_way_and_keeps_its_workspace(kind: str, gates: int, kept: int, bias: bool) -> None:
    trace = step(kind, bias)
    forward = [op for op in named(trace, "_thnn_fused") if op.phase == "forward"]
    backward = [op for op in named(trace, "_thnn_fused") if op.phase == "backward"]
    assert len(forward) == len(backward) == STEPS and not named(trace, "sigmoid")
    products = [op for op in named(trace, "mm") if op.phase == "forward"]
    assert len(products) == 2 * STEPS
    saved = [one.nbytes for one in trace.storages if one.op == forward[0].name and one.category == "activations"]
    assert saved.count(ROWS * HIDDEN * kept * 4) >= STEPS
    wide = ROWS * HIDDEN * gates * 4
    sums = [one for one in trace.storages if one.op == "mm" and one.nbytes == wide and one.category == "activations"]
    assert len(sums) == 2 * STEPS


def test_the_users_own_cells_are_as_before() -> None:
    torch.manual_seed(0)
    cell, x = nn.LSTMCell(4, 8), torch.randn(2, 4)
    before = cell(x)
    step("LSTMCell")
    assert all(torch.equal(a, b) for a, b in zip(before, cell(x), strict=True))
