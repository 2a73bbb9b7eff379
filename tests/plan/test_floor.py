"""The stated floor is no higher than the smallest peak that trying everything finds, at the same fidelity."""

from __future__ import annotations

from itertools import chain, combinations, product

import pytest
import torch
from torch import nn

from memfit.apply import conflict
from memfit.core.device import Device
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.plan import make_plan
from memfit.plan.explore import Candidate, Explorer
from memfit.trace.segments import segments
from memfit.trace.usage import usage

CPU = Device("cpu", "cpu", 8 << 30, {"float32": 1e11}, 1e10, overhead_s=2e-6)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def perceptron() -> Job:
    model = nn.Sequential(*(Residual(32) for _ in range(3)), nn.Linear(32, 10))
    return classified(model, torch.randn(512, 32))


def convolutional() -> Job:
    def block(inside: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inside, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())

    model = nn.Sequential(block(3), block(16), block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return classified(model, torch.randn(16, 3, 16, 16))


def tokens() -> Job:
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(100, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 100))
    inputs = torch.randint(0, 100, (16, 24))

    def loss(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(net(batch).flatten(0, 1), batch.flatten())

    return Job(model, loss, inputs, torch.optim.AdamW(model.parameters()))


def classified(model: nn.Module, inputs: torch.Tensor) -> Job:
    def loss(net: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(net(batch[0]), batch[1])

    return Job(model, loss, (inputs, torch.randint(0, 10, (len(inputs),))), torch.optim.AdamW(model.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("make", [perceptron, convolutional, tokens])
def test_floor_is_no_higher_than_trying_everything(make) -> None:
    torch.manual_seed(0)
    job = make()
    plan = make_plan(job, budget=1024, device=CPU)
    assert not plan.fits
    smallest = min(candidate.simulation.peak.high_bytes for candidate in everything(Explorer(job, CPU), plan.fidelity))
    assert plan.floor_bytes <= smallest


def everything(explorer: Explorer, fidelity: str) -> list[Candidate]:
    """Every set of modules x every micro-batch count x step in backward or not, all of it traced and simulated."""
    trace = explorer.plain.trace
    modules = [s.path for s in segments(trace, usage(trace)) if s.frees_bytes > 0][:8]
    sets = [s for s in subsets(modules) if not any(a.startswith(b + ".") for a in s for b in s)]
    couples = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in explorer.fake.model.modules())
    counts = [1] if couples else [1, 2, 4, 16, 512]
    found = []
    for chosen, count, early in product(sets, counts, (False, True)):
        choices = [Choice("checkpoint", {"modules": list(chosen)})] if chosen else []
        choices += [Choice("micro-batches", {"count": count})] if count > 1 else []
        choices += [Choice("step-in-backward")] if early else []
        candidate = explorer.candidate(choices) if conflict(choices) is None else ""
        if isinstance(candidate, Candidate):
            found.append(candidate)
    return found


def subsets(items: list[str]) -> list[tuple[str, ...]]:
    return list(chain.from_iterable(combinations(items, size) for size in range(len(items) + 1)))
