"""Targets that the tests of training and of proofs run, here or in fresh processes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from memfit.jobs import Job


class Block(nn.Module):
    """Wide inside: plain keeps `up` and its activation, checkpointing keeps the narrow input only."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


def mean_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def deep(batch: int = 8192, width: int = 64, hidden: int = 1024, layers: int = 12, drop: float = 0.0) -> Job:
    """A 12-layer MLP: at batch 8192 plain needs some 840 MiB, with each block checkpointed some 150."""
    model = nn.Sequential(*[Block(width, hidden) for _ in range(layers)], nn.Dropout(drop), nn.Linear(width, 10))
    return Job(model, mean_loss, (torch.randn(batch, width), torch.randint(0, 10, (batch,))), torch.optim.AdamW)


def small(batches: int = 6, drop: float = 0.1, nan_at: int | None = None, pause_s: float = 0.0) -> Job:
    """Dropout, BatchNorm, clipping, a scheduler, and data whose order and noise are drawn."""
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(drop), nn.Linear(32, 4))
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(batches * 8, 16, generator=generator)
    classes = torch.randint(0, 4, (batches * 8,), generator=generator)

    def data(epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(len(inputs))
        for number in range(batches):
            rows = order[number * 8 : number * 8 + 8]
            x = inputs[rows] + 0.01 * torch.randn(8, 16)
            time.sleep(pause_s)
            yield (x * float("nan") if number == nan_at else x), classes[rows]

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"accuracy": (model(inputs).argmax(1) == classes).float().mean().item()}

    return Job(model, mean_loss, (inputs[:8], classes[:8]), lambda p: torch.optim.AdamW(p, lr=1e-2), data=data,
               evaluate=evaluate, clip_norm=1.0, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 4, 0.5))


def vector_loss() -> Job:
    """A loss that is no scalar."""
    return Job(nn.Linear(4, 4), lambda model, batch: model(batch), torch.randn(2, 4), torch.optim.SGD)


def no_graph() -> Job:
    return Job(nn.Linear(4, 1), lambda model, batch: model(batch).mean().detach(), torch.randn(2, 4), torch.optim.SGD)


def raising_loss() -> Job:
    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such column")

    return Job(nn.Linear(4, 1), loss, torch.randn(2, 4), torch.optim.SGD)
