"""Targets that the tests of the command line name: small ones that work, and every kind of bad input."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import memfit

Batch = dict[str, torch.Tensor]
NUMBER = 3


class Block(nn.Module):
    """Wide inside, so that there is something to save."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


def network(width: int = 16, hidden: int = 256, layers: int = 2) -> nn.Module:
    return nn.Sequential(*[Block(width, hidden) for _ in range(layers)], nn.Linear(width, 4))


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["labels"])


def drawn(samples: int, width: int = 16) -> Batch:
    return {"x": torch.randn(samples, width), "labels": torch.randint(0, 4, (samples,))}


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def job(batch: int = 1024, hidden: int = 256, layers: int = 2, seed: int = 0) -> memfit.Job:
    """Needs some 5 MiB at its peak; checkpointing or micro-batches bring it to a third."""
    return memfit.Job(lambda: network(hidden=hidden, layers=layers), loss, drawn(batch), adamw)


def loud(batch: int = 16) -> memfit.Job:
    """Prints from Python and beneath it."""
    print("a line of the target")
    os.write(1, b"a line beneath Python\n")
    return job(batch)


def epochs(
    batches: int = 4, pause_s: float = 0.0, nan_at: int | None = None, ignored: bool = False, last: int = 8
) -> memfit.Job:
    """With data: one batch may be NaN, the second without labels in its first half, the last of another size."""

    def data(epoch: int) -> Iterator[Batch]:
        for number in range(batches):
            time.sleep(pause_s)
            batch = drawn(last if number == batches - 1 else 8)
            if number == nan_at:
                batch["x"] *= float("nan")
            if ignored and number == 1:
                batch["labels"][:4] = -100
            yield batch

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"accuracy": float((model(torch.ones(4, 16)).argmax(1) == 0).float().mean())}

    return memfit.Job(lambda: network(hidden=8), loss, drawn(8), adamw, data=data, evaluate=evaluate)


def hoarding(hidden_mib: int = 200) -> memfit.Job:
    """Holds memory that no trace sees."""
    hoard = torch.ones(hidden_mib * 2**20, dtype=torch.uint8)

    def data(epoch: int) -> Iterator[Batch]:
        while bool(hoard[0]):
            yield drawn(8)

    return memfit.Job(lambda: network(hidden=8), loss, drawn(8), adamw, data=data)


def each_time_another() -> memfit.Job:
    """Weights that no seed governs: planned is never plain."""
    torch.manual_seed(time.time_ns() % 2**31)
    return memfit.Job(network(hidden=8), loss, drawn(8), adamw)


def through_numpy(batch: int = 1024) -> memfit.Job:
    """Cannot be traced: the loss leaves torch on its way."""

    def scaled(model: nn.Module, batch: Batch) -> torch.Tensor:
        return loss(model, batch) * float(batch["x"].numpy().shape[1] / 16)

    return memfit.Job(network(), scaled, drawn(batch), adamw)


def raises() -> memfit.Job:
    raise KeyError("no such column")


def exits() -> memfit.Job:
    sys.exit(3)


def no_job() -> int:
    return NUMBER


def simple(compute: Callable[[nn.Module, torch.Tensor], Any], **options: Any) -> memfit.Job:
    return memfit.Job(nn.Linear(4, 4), compute, torch.ones(8, 4), options.pop("optimizer", adamw), **options)


def vector_loss() -> memfit.Job:
    return simple(lambda model, batch: model(batch))


def number_loss() -> memfit.Job:
    return simple(lambda model, batch: 3.0)


def no_graph() -> memfit.Job:
    return simple(lambda model, batch: model(batch).mean().detach())


def frozen() -> memfit.Job:
    model = nn.Linear(4, 4).requires_grad_(False)
    return memfit.Job(model, lambda model, batch: model(batch).mean(), torch.ones(8, 4), adamw)


def foreign_optimizer() -> memfit.Job:
    return simple(lambda model, batch: model(batch).mean(), optimizer=adamw(nn.Linear(4, 4).parameters()))


def closure_optimizer() -> memfit.Job:
    return simple(lambda model, batch: model(batch).mean(), optimizer=torch.optim.LBFGS)


def no_optimizer() -> memfit.Job:
    return simple(lambda model, batch: model(batch).mean(), optimizer=lambda parameters: 3)


def raising_loss() -> memfit.Job:
    def compute(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        raise KeyError("no such column")

    return simple(compute)


def exiting_loss() -> memfit.Job:
    return simple(lambda model, batch: sys.exit(3))


def raising_model() -> memfit.Job:
    def make() -> nn.Module:
        raise ValueError("no such width")

    return memfit.Job(make, loss, drawn(8), adamw)


def wrong_width() -> memfit.Job:
    return memfit.Job(nn.Linear(5, 4), lambda model, batch: model(batch).mean(), torch.ones(8, 4), adamw)


def one_sample() -> memfit.Job:
    return memfit.Job(network(hidden=8), loss, drawn(1), adamw)


def with_names() -> memfit.Job:
    """A batch that cannot be split: its names are no tensor."""
    return memfit.Job(network(hidden=8), loss, {**drawn(8), "names": ["a"] * 8}, adamw)
