"""Compiled blocks: predicted to the byte without a kernel, the same result, shared code."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.plan.explore import Candidate, Explorer
from memfit.strategies.exact.compile import blocks
from memfit.train import Session

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.narrow(nn.functional.gelu(self.wide(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, scale=0.5)
        return self.head(x)


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["labels"])


def job(samples: int = 512) -> Job:
    torch.manual_seed(0)
    model = Model()
    batch = {"x": torch.randn(samples, 64), "labels": torch.randint(0, 10, (samples,))}
    return Job(model, loss, batch, torch.optim.AdamW(model.parameters(), foreach=False), weight=len_of)


def len_of(batch: dict[str, torch.Tensor]) -> float:
    return float(len(batch["x"]))


def choices(made: Job, *others: Choice) -> list[Choice]:
    return [Choice("compile", {"modules": blocks(made.model)}), *others]


@pytest.mark.parametrize("others", [(), (Choice("micro-batches", {"count": 4}),), (Choice("step-in-backward"),),
                                    (Choice("checkpoint", {"modules": ["blocks.1", "blocks.2"]}),)],
                         ids=lambda others: others[0].name if others else "alone")
def test_peak_is_predicted_to_the_byte(others: tuple[Choice, ...]) -> None:
    made = job()
    mix = choices(made, *others)
    seen = Explorer(made, "cpu").candidate(mix)
    assert isinstance(seen, Candidate), seen
    with Session(made, mix) as session:
        measured = [session.step().peak_bytes for _ in range(3)][-1]
    kept = 16_384 if others and others[0].name == "checkpoint" else 0  # states of random generators
    assert abs(seen.simulation.peak.allocated_bytes - measured) <= kept


def test_result_is_the_same_and_blocks_share_their_code() -> None:
    plain, made = job(), job()
    torch.compiler.reset()
    counters.clear()
    with Session(plain) as one, Session(made, choices(made)) as other:
        for _ in range(3):
            assert torch.allclose(one.step().loss_tensor, other.step().loss_tensor, rtol=1e-6)
    assert counters["stats"]["unique_graphs"] == 2  # four blocks: the first one's input has no gradient


def test_planning_leaves_nothing_behind_in_the_process() -> None:
    made = job()
    assert isinstance(Explorer(made, "cpu").candidate(choices(made)), Candidate)
    with Session(made, choices(made)) as session:
        assert torch.isfinite(session.step().loss_tensor)
    assert all("forward" not in block.__dict__ for block in made.model.blocks)


def test_other_batch_sizes_are_compiled_once_more_only() -> None:
    made = job()
    torch.compiler.reset()
    counters.clear()
    with Session(made, choices(made)) as session:
        for samples in (512, 100, 60, 33, 17, 500):
            session.step(job(samples).batch)
    assert counters["stats"]["unique_graphs"] == 4  # the two as they are, and for any size


def test_checkpointed_blocks_take_other_batch_sizes() -> None:
    made = job()
    with Session(made, choices(made, Choice("checkpoint", {"modules": ["blocks.1", "blocks.2"]}))) as session:
        for samples in (512, 100, 60, 500):
            assert torch.isfinite(session.step(job(samples).batch).loss_tensor)


def test_a_graph_that_breaks_is_told() -> None:
    class Breaks(Block):
        def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
            torch._dynamo.graph_break()
            return super().forward(x, scale=scale)

    made = job()
    made.model.blocks = nn.ModuleList(Breaks(64) for _ in range(2))
    made = Job(made.model, loss, made.batch, torch.optim.SGD(made.model.parameters(), 0.1), weight=len_of)
    seen = Explorer(made, "cpu").candidate(choices(made))
    assert isinstance(seen, str) and "Breaks as one graph" in seen


def test_blocks_are_what_stands_beside_its_like() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Block(4), Block(4), Block(8)))
    assert blocks(model) == ["1.0", "1.1"]
