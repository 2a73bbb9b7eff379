"""Attention written out over leaf tensors q, k, v: fp32, forward and backward, peaks of the backward and of both."""

from __future__ import annotations

import torch
from torch import nn

import memfit
from cuda_rows.common import Case, NoOptimizer
from cuda_rows.cs336_model import attend

ROWS = {  # row: (length, width)
    "P041": (1024, 16), "P043": (4096, 16), "P045": (8192, 16), "P049": (1024, 32), "P053": (8192, 32), "P055": (256, 64),
    "P059": (4096, 64), "P061": (8192, 64), "P063": (256, 128), "P065": (1024, 128), "P067": (4096, 128), "P069": (8192, 128),
}


class Leaves(nn.Module):
    """q, k, v [8, length, width]; the output stays until the step is over, as the script's variable does."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.empty(8, length, width)) for _ in range(3))
        self.out: torch.Tensor | None = None

    def forward(self, mean: bool) -> torch.Tensor:
        self.out = None
        self.out = attend(self.q, self.k, self.v)
        return self.out.mean() if mean else self.out.sum()


def both_passes(length: int, width: int, *, mean: bool, keeps: bool) -> memfit.Job:
    return memfit.Job(lambda: Leaves(length, width), lambda model, _: model(mean), (),
                      lambda parameters: NoOptimizer(parameters, keeps_gradients=keeps), zero_grad="before_forward")


def cases() -> list[Case]:
    found = [Case("P009", "a100-80gb", lambda: both_passes(4096, 16, mean=False, keeps=False), reads="first_allocated",
                  torch="2.2")]
    for row, (length, width) in ROWS.items():
        found.append(Case(row, "a100-80gb", lambda n=length, d=width: both_passes(n, d, mean=True, keeps=True), torch="2.x"))
    return found
