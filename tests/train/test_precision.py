"""The precision probe: it names what leaves the range, and leaves nothing behind."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from memfit.core.errors import UsageError
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.monitor.measure import job_tensors, measure_peak, measure_step
from memfit.train import Session
from memfit.train.precision import first_not_finite, half_by_accident, precision_notes

HALF = Choice("autocast", {"dtype": "float16"})
BRAIN = Choice("autocast", {"dtype": "bfloat16"})


class Block(nn.Module):
    """`scale` blows up what passes forward, `back` the gradient."""

    def __init__(self, scale: float = 1.0, back: float = 1.0) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.back = back
        with torch.no_grad():
            self.inner.weight *= scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.outer(self.drop(torch.tanh(self.inner(x))))
        return self.norm(y.float() + (self.back - 1.0) * (y - y.detach()).float())


def square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).float().square().mean()


def job_of(*blocks: nn.Module) -> Job:
    torch.manual_seed(0)
    return Job(nn.Sequential(*blocks), square, torch.randn(32, 16), lambda p: torch.optim.AdamW(p, lr=0.01))


@pytest.mark.parametrize(("blocks", "choices", "expected"), [
    ((Block(), Block(), Block()), [HALF], None),
    ((Block(), Block(scale=1e6), Block()), [HALF], "1.inner is the first module whose output is not finite (float16)"),
    ((Block(), Block(scale=1e6), Block()), [BRAIN], None),  # bfloat16 has the range
    ((Block(), Block(back=1e12), Block()), [HALF], "the gradient of the output of 1.outer is the first that is not finite"),
    ((Block(), Block(scale=1e6), Block()), [HALF, Choice("checkpoint", {"modules": ["1"]}),
                                             Choice("micro-batches", {"count": 2})], "1.inner is the first module"),
])
def test_the_first_module_out_of_range_is_named_and_nothing_is_left(
    blocks: tuple[nn.Module, ...], choices: list[Choice], expected: str | None
) -> None:
    job, twin = job_of(*copy.deepcopy(blocks)), job_of(*copy.deepcopy(blocks))
    kept = torch.full_like(job.model[0].inner.weight, 7.0)
    job.model[0].inner.weight.grad = kept
    generator = torch.get_rng_state()
    session = Session(job, choices, profile_peaks=False)
    if expected is None:
        assert session.notes == []
    else:
        assert len(session.notes) == 1 and session.notes[0].startswith(f"precision: {expected}")
    assert torch.equal(torch.get_rng_state(), generator)
    for name, value in job.model.state_dict().items():
        assert torch.equal(value, twin.model.state_dict()[name], ), name
    assert [p.grad is not None for p in job.model.parameters()] == [True] + [False] * (len(list(job.model.parameters())) - 1)
    assert job.model[0].inner.weight.grad is kept and bool((kept == 7.0).all())
    assert not any(module._forward_hooks for module in job.model.modules())


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(16, 16), Block()

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.block, self.first(x), use_reentrant=True)


def test_models_that_backward_cannot_be_looked_at_of_train_all_the_same() -> None:
    job = job_of(Reentrant())
    with Session(job, [HALF], profile_peaks=False) as session:
        assert not session.notes and session.step().loss > 0


def test_a_run_that_ends_there_says_where() -> None:
    with (Session(job_of(Block(), Block(scale=1e6), Block()), [HALF], profile_peaks=False) as session,
          pytest.raises(UsageError, match=r"the loss is nan at step 1; .*; precision: 1.inner is the first module") as ended):
        session.step()
    assert "bfloat16" in ended.value.advice


def test_a_plan_in_the_jobs_precision_is_not_probed() -> None:
    calls: list[int] = []

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return square(model, batch)

    job = job_of(Block())
    job.loss = loss
    Session(job, [Choice("step-in-backward")])
    assert precision_notes(job, [Choice("checkpoint")]) == [] and not calls


def test_a_loss_out_of_range_is_told_apart() -> None:
    job = job_of(Block())
    job.loss = lambda model, batch: square(model, batch) * float("inf")
    assert first_not_finite(job) == "the loss is inf, though the output of every module is finite"


def test_half_parameters_among_float32_ones_are_listed() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16).to(torch.bfloat16), nn.Linear(16, 16))
    assert half_by_accident(model) == ("2 of 6 parameters are in half precision, and updated in it: 1.weight (bfloat16), "
                                       "1.bias (bfloat16)")
    assert half_by_accident(nn.Linear(4, 4)) is None
    assert half_by_accident(model.to(torch.bfloat16)) is None  # on purpose


def test_float16_parameters_cannot_be_unscaled() -> None:
    job = job_of(Block())
    job.model[0].norm.half()
    with pytest.raises(UsageError, match=r"2 parameters are float16 themselves \(first 0.norm.weight\)"):
        Session(job, [HALF])
    assert job.rules.scaling is None


def test_the_probe_needs_no_more_than_the_step() -> None:
    torch.manual_seed(0)
    layers: list[Any] = [m for _ in range(6) for m in (nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128))]
    job = Job(nn.Sequential(*layers), square, torch.randn(4096, 128), torch.optim.AdamW)
    choices = [BRAIN, Choice("micro-batches", {"count": 4}), Choice("step-in-backward")]
    with Session(job, choices, profile_peaks=False) as session:
        session.step()
        probe = measure_peak(lambda: first_not_finite(job), job_tensors(job))
        assert probe <= measure_step(job, session.step)
