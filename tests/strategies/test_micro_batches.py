"""Micro-batches: equal to the big batch where they are said to be, and said not to be where they are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memfit.apply import apply_choices
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Choice
from memfit.core.trace import Trace
from memfit.jobs import Job, run_step
from memfit.jobs.weights import label_count
from memfit.plan.explore import Explorer
from memfit.strategies.exact.micro_batches import STRATEGY, batch_coupled, draws_random

CPU = Device("cpu", "cpu", 1 << 40, {}, 1e10)
NOTHING = Trace((), (), (), 0)


def job_of(model: nn.Module, batch: Any = None, loss: Any = None) -> Job:
    return Job(model, loss or (lambda m, x: m(x).square().mean()), torch.randn(8, 4) if batch is None else batch,
               lambda parameters: torch.optim.SGD(parameters, lr=0.1))


def token_job(counts: list[int]) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 13))
    labels = torch.randint(0, 13, (len(counts), 16))
    for row, count in enumerate(counts):
        labels[row, count:] = -100
    batch = {"ids": torch.randint(0, 13, labels.shape), "labels": labels}

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())

    return Job(model, loss, batch, lambda ps: torch.optim.SGD(ps, lr=0.1), weight=label_count)


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("counts", [[2, 2, 2, 2, 16, 16, 16, 16], [16, 0, 1, 5, 0, 0, 3, 7]])
def test_parts_count_by_their_labels(counts: list[int], count: int) -> None:
    gradients, losses = [], []
    for choices in ([], [Choice("micro-batches", {"count": count})]):
        job = token_job(counts)
        apply_choices(job, choices)
        result = run_step(job, job.batch, on_gradients=lambda m=job.model: gradients.append(
            torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None])))
        losses.append(result.loss)
    assert abs(losses[0] - losses[1]) <= 1e-6 * losses[0]
    assert (gradients[0] - gradients[1]).norm() <= 1e-6 * gradients[0].norm()


class Attends(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.attention_dropout = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.attention_dropout, self.training)


class Config:
    attention_probs_dropout_prob = 0.1

    def __init__(self, p: float) -> None:
        self.layerdrop = p


class ByConfig(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.config = Config(p)


FIDELITIES: dict[str, tuple[Any, Fidelity]] = {
    "linear": (lambda: nn.Linear(4, 4), Fidelity.REORDERED),
    "dropout": (lambda: nn.Dropout(0.1), Fidelity.RESAMPLED),
    "dropout of zero": (lambda: nn.Dropout(0.0), Fidelity.REORDERED),
    "dropout evaluating": (lambda: nn.Dropout(0.1).eval(), Fidelity.REORDERED),
    "dropout by function": (lambda: Attends(0.1), Fidelity.RESAMPLED),
    "no dropout by function": (lambda: Attends(0.0), Fidelity.REORDERED),
    "dropout by config": (lambda: ByConfig(0.1), Fidelity.RESAMPLED),
    "attention": (lambda: nn.MultiheadAttention(4, 1, dropout=0.1), Fidelity.RESAMPLED),
    "recurrent": (lambda: nn.GRU(4, 4, 2, dropout=0.1), Fidelity.RESAMPLED),
    "random slope": (lambda: nn.RReLU(), Fidelity.RESAMPLED),
    "batch norm": (lambda: nn.BatchNorm1d(4), Fidelity.ADAPTED),
    "batch norm, frozen": (lambda: nn.BatchNorm1d(4).eval(), Fidelity.REORDERED),
    "batch norm without statistics, evaluating": (
        lambda: nn.BatchNorm1d(4, track_running_stats=False).eval(), Fidelity.ADAPTED),
    "instance norm with statistics": (lambda: nn.InstanceNorm1d(4, track_running_stats=True), Fidelity.ADAPTED),
    "layer norm": (lambda: nn.LayerNorm(4), Fidelity.REORDERED),
}


@pytest.mark.parametrize("kind", FIDELITIES)
def test_fidelity_follows_the_model(kind: str) -> None:
    make, expected = FIDELITIES[kind]
    model = nn.Sequential(nn.Linear(4, 4), make())
    model[1].training = model[1].training  # as made; the container does not decide
    assert STRATEGY.fidelity(job_of(model), {"count": 2}) is expected
    assert STRATEGY.fidelity(job_of(model), {"count": 1}) is Fidelity.BITWISE
    assert bool(batch_coupled(model)) == (expected is Fidelity.ADAPTED)
    assert bool(draws_random(model)) == (expected is Fidelity.RESAMPLED)


def test_dropout_that_only_a_call_knows_of_is_seen_by_the_trace() -> None:
    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(super().forward(x), 0.5, self.training)

    for training, expected in ((True, Fidelity.RESAMPLED), (False, Fidelity.REORDERED)):
        explorer = Explorer(job_of(Net(4, 4).train(training)), CPU)
        assert STRATEGY.fidelity(explorer.fake, {"count": 2}) is expected


def test_batch_norm_really_gives_another_result() -> None:
    outcomes = []
    for choices in ([], [Choice("micro-batches", {"count": 2})]):
        torch.manual_seed(0)
        job = job_of(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
        apply_choices(job, choices)
        run_step(job, job.batch)
        outcomes.append([buffer.double() for buffer in job.model.buffers()])
    assert any(not torch.allclose(one, two, rtol=1e-6) for one, two in zip(*outcomes, strict=True))


def test_counts_each_make_the_largest_part_smaller() -> None:
    model = nn.Linear(4, 4)
    assert [c["count"] for c in STRATEGY.choices(job_of(model), NOTHING, CPU)] == [2, 4, 8]
    assert [c["count"] for c in STRATEGY.choices(job_of(model, torch.randn(10, 4)), NOTHING, CPU)] == [2, 4, 8, 10]
    normed = nn.Sequential(model, nn.BatchNorm1d(4))
    assert [c["count"] for c in STRATEGY.choices(job_of(normed), NOTHING, CPU)] == [2, 4]  # never a single sample


@pytest.mark.parametrize(("batch", "reason"), [
    (torch.randn(1, 4), "one sample"), ({"x": torch.randn(3, 4), "names": ["a", "b", "c"]}, "names"),
    ({"scale": torch.tensor(1.0)}, "no tensor with a batch dimension")])
def test_batches_that_cannot_be_split_say_why(batch: Any, reason: str) -> None:
    job = job_of(nn.Linear(4, 4), batch)
    assert reason in (STRATEGY.excluded(job, CPU) or "")
    with pytest.raises(UsageError, match="micro-batches: "):
        apply_choices(job, [Choice("micro-batches", {"count": 2})])


@pytest.mark.parametrize("count", [0, -1, 2.0, "2", True, None])
def test_counts_that_are_none(count: Any) -> None:
    with pytest.raises(UsageError, match="count is"):
        apply_choices(job_of(nn.Linear(4, 4)), [Choice("micro-batches", {"count": count})])
