"""A plan written as plain PyTorch runs without memfit, gives the same bits, and needs the same memory."""

from __future__ import annotations

import builtins
import sys
from collections import UserDict, namedtuple
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from matrix import ROWS, Row, mixed_job
from torch import nn
from torch.profiler import ProfilerActivity, profile

from memfit.apply import apply_choices, conflict, plan_code, strategy
from memfit.core.strategy import Choice
from memfit.jobs import Job, batches, run_step
from memfit.jobs.weights import label_count, sample_count, shifted_label_count
from memfit.train import Session

PLAIN = tuple(row for row in ROWS if strategy(row.name).code(row.settings) is not None)  # the others say that they need memfit
MIXES = [(), *((row,) for row in PLAIN),
         *((a, b) for i, a in enumerate(PLAIN) for b in PLAIN[i + 1:] if conflict([a.choice, b.choice]) is None),
         tuple(row for row in PLAIN if row.name not in ("step-in-backward", "recompute", "fused-step"))]


def run_without_memfit(source: str) -> dict[str, Any]:
    """Execute the source where importing memfit fails; its names."""

    def guarded(name: str, *args: Any) -> Any:
        assert not name.startswith("memfit"), "the plan's code imports memfit"
        return builtins.__import__(name, *args)

    module = ModuleType("plan_under_test")
    module.__dict__["__builtins__"] = {**vars(builtins), "__import__": guarded}
    sys.modules[module.__name__] = module
    exec(compile(source, "plan.py", "exec"), module.__dict__)
    return module.__dict__


def make_step(source: str, job: Job, **more: Any) -> Any:
    arguments = {"scheduler": job.scheduler} if job.scheduler is not None else {}
    return run_without_memfit(source)["make_step"](job.model, job.loss, job.optimizer, **arguments, **more)


@pytest.mark.parametrize("rows", MIXES, ids=lambda rows: " + ".join(row.name for row in rows) or "plain")
def test_same_bits_as_the_session(rows: tuple[Row, ...]) -> None:
    choices = [row.choice for row in rows]
    session, plain = mixed_job(), mixed_job()
    step = make_step(plan_code(choices, plain), plain)
    apply_choices(session, choices)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = run_step(session, session.batch).loss
        torch.manual_seed(seed)
        assert torch.equal(step(plain.batch), expected)
    for mine, other in zip(session.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_loss_scaling_is_written_out(clip_norm: float | None) -> None:
    jobs = mixed_job(), mixed_job()
    for job in jobs:
        job.clip_norm = clip_norm
    choices = [Choice("autocast", {"dtype": "float16"}), Choice("micro-batches", {"count": 3})]
    source = plan_code(choices, jobs[1]).replace("GradScaler(next(", "GradScaler(init_scale=2.0**40, device=next(")
    step = make_step(source, jobs[1])
    apply_choices(jobs[0], choices)
    assert jobs[0].rules.scaling is not None
    jobs[0].rules.scaling.load({**jobs[0].rules.scaling.state(), "scale": 2.0**40})
    rates: list[set[float]] = []
    for seed in range(30):  # the first steps are skipped
        torch.manual_seed(seed)
        expected = run_step(jobs[0], jobs[0].batch)
        torch.manual_seed(seed)
        assert torch.equal(step(jobs[1].batch), expected.loss)
        rates.append({job.optimizer.param_groups[0]["lr"] for job in jobs})
    assert all(len(both) == 1 for both in rates) and rates[0] == rates[3] != rates[-1]


@pytest.mark.parametrize("zero_grad", ["after_step", "before_forward", "before_backward"])
def test_clipping_and_zeroing_stand_where_the_job_has_them(zero_grad: Any) -> None:
    jobs = mixed_job(), mixed_job()
    for job in jobs:
        job.clip_norm, job.zero_grad = 0.05, zero_grad
    choices = [Choice("micro-batches", {"count": 3})]
    step = make_step(plan_code(choices, jobs[1]), jobs[1])
    apply_choices(jobs[0], choices)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = run_step(jobs[0], jobs[0].batch).loss
        torch.manual_seed(seed)
        assert torch.equal(step(jobs[1].batch), expected)


@pytest.mark.parametrize("row", [row for row in PLAIN if row.name != "autocast"], ids=lambda row: row.name)
def test_same_peak_as_the_session(row: Row) -> None:
    session, plain = mixed_job(dropout=0.0), mixed_job(dropout=0.0)
    step = make_step(plan_code([row.choice], plain), plain)
    apply_choices(session, [row.choice])
    run_step(session, session.batch), step(plain.batch)
    expected = peak_bytes(lambda: run_step(session, session.batch))
    assert abs(peak_bytes(lambda: step(plain.batch)) - expected) <= 0.01 * expected


def peak_bytes(work: Any) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        work()
    current = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return peak


def test_weights_are_written_out_or_asked_for() -> None:
    job = mixed_job()
    choices = [Choice("micro-batches", {"count": 2})]
    for function in (sample_count, label_count, shifted_label_count):
        job.weight = function
        weight = run_without_memfit(plan_code(choices, job))["weight"]
        for part in batches.split(job.batch, 3):
            assert weight(part) == function(part)
    job.weight = lambda batch: 2.0
    assert "make_step(model, loss, optimizer, weight, scheduler)" in plan_code(choices, job)


def test_without_a_weight_labels_ask_for_one_and_give_the_choice() -> None:
    """The session probes the loss; a plan may be made before there are weights to probe."""
    session, plain = mixed_job(), mixed_job()
    session.weight = plain.weight = None
    choices = [Choice("micro-batches", {"count": 2})]
    source = plan_code(choices, plain)
    names = run_without_memfit(source)
    for function in (sample_count, label_count, shifted_label_count):
        for part in batches.split(plain.batch, 3):
            assert names[function.__name__](part) == function(part)
    step = make_step(source, plain, weight=names["label_count"])
    with Session(session, choices) as running:
        torch.manual_seed(0)
        expected = running.step().loss_tensor
        torch.manual_seed(0)
        assert torch.equal(step(plain.batch), expected)


def test_without_a_weight_and_without_labels_samples_count() -> None:
    x = torch.randn(6, 4)
    job = Job(nn.Linear(4, 1), lambda model, batch: model(batch["x"]).square().mean(), {"x": x},
              partial(torch.optim.SGD, lr=0.1))
    source = plan_code([Choice("micro-batches", {"count": 2})], job)
    assert "make_step(model, loss, optimizer):" in source
    assert run_without_memfit(source)["weight"]({"x": x}) == 6.0


Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Sample:
    x: torch.Tensor
    name: str


@pytest.mark.parametrize("wrap", [
    lambda x: x, lambda x: (x, x[:, 0]), lambda x: [x, {"a": x}], lambda x: Pair(x, x + 1), lambda x: Sample(x, "s"),
    lambda x: UserDict({"x": x, "all": torch.arange(3.0)}), lambda x: {"x": x, "scale": 2.0, "none": None},
], ids=["tensor", "tuple", "nested", "namedtuple", "dataclass", "userdict", "other leaves"])
def test_split_of_the_code_is_the_split_of_the_session(wrap: Any) -> None:
    batch = wrap(torch.randn(7, 2))
    split = run_without_memfit(plan_code([Choice("micro-batches", {"count": 3})], mixed_job()))["split"]
    for count in (2, 3, 7, 9):
        mine, other = split(batch, count), batches.split(batch, count)
        assert len(mine) == len(other)
        for one, two in zip(mine, other, strict=True):
            assert type(one) is type(two)
            for a, b in zip(batches.tensors(one), batches.tensors(two), strict=True):
                assert torch.equal(a, b)


def test_a_strategy_without_a_plain_form_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(strategy("checkpoint")), "code", lambda self, settings: None)
    text = plan_code([Choice("checkpoint", {"modules": ["blocks.0"]})], mixed_job())
    assert "checkpoint has no form in plain PyTorch" in text
    assert compile(text, "plan.py", "exec")
