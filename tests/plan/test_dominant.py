"""One line on what most of plain's peak is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memfit.core.device import Device
from memfit.jobs import Job
from memfit.plan.dominant import dominant
from memfit.plan.explore import Explorer

CPU = Device("cpu", "cpu", 8 << 30, {"float32": 1e11}, 1e10, overhead_s=2e-6)


class ByHand(nn.Module):
    """Attention whose weights are a tensor of their own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x @ x.transpose(-2, -1), -1) @ x


def line(model: nn.Module, shape: tuple[int, ...], classes: int) -> str:
    batch = (torch.randn(shape), torch.randint(0, classes, shape[:-1]))

    def loss(net: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(net(data[0]).flatten(0, -2), data[1].flatten())

    return dominant(Explorer(Job(model, loss, batch, torch.optim.AdamW(model.parameters())), CPU).plain)


@pytest.mark.parametrize(("model", "shape", "classes", "word", "where"), [
    (nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 4)), (1, 512), 4, "parameters, gradients and optimizer states", ""),
    (nn.Linear(16, 20_000), (256, 16), 20_000, "logits", ""),
    (nn.Sequential(ByHand(), nn.Linear(8, 4)), (4, 256, 8), 4, "attention weights", "made in 0"),
    (nn.Sequential(nn.Linear(64, 64), *[nn.Dropout(0.1) for _ in range(9)], nn.Linear(64, 4)), (4096, 64), 4, "dropout masks",
     "made in"),
    (nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)], nn.Linear(64, 4)), (4096, 64), 4,
     "activations", "made in"),
], ids=["states", "logits", "attention", "dropout", "activations"])
def test_what_dominates_is_named(model: nn.Module, shape: tuple[int, ...], classes: int, word: str, where: str) -> None:
    told = line(model, shape, classes)
    assert told.startswith(f"plain's peak is mostly {word}: ") and where in told, told
