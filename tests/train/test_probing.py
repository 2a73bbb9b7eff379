"""The weight of micro-batches is checked, too, where a few samples at once are more than the budget holds."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memfit.core.errors import RanOutOfMemory, UsageError
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.train import Session, session

MICRO = [Choice("micro-batches", {"count": 2})]


def job(class_weights: bool) -> Job:
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    weight = torch.tensor([1.0, 5.0, 25.0]) if class_weights else None

    def loss(net: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(net(batch["x"]), batch["labels"], weight=weight)

    batch = {"x": torch.randn(6, 8), "labels": torch.tensor([0, 1, 2, 0, 1, 2])}
    return Job(model, loss, batch, torch.optim.SGD(model.parameters(), 0.1))


def refuse(_: Job) -> None:
    raise RanOutOfMemory("can't allocate memory")


def test_a_child_without_the_limit_checks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "probe_weight", refuse)
    made = job(class_weights=False)
    with Session(made, MICRO) as running:
        assert made.weight is not None and made.weight({"labels": torch.tensor([1, -100, 2])}) == 2.0
        assert torch.isfinite(running.step().loss_tensor)


def test_it_refuses_there_as_it_does_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "probe_weight", refuse)
    with pytest.raises(UsageError, match="would change the result"):
        Session(job(class_weights=True), MICRO)
