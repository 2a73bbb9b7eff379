"""The optimizer in backward: the same bits with every optimizer that allows it, refused where it does not."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

from memfit.apply import apply_choices
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.strategy import Choice
from memfit.jobs import Job, run_step
from memfit.strategies.exact.step_in_backward import STRATEGY

CPU = Device("cpu", "cpu", 1 << 40, {}, 1e10)
CHOICE = Choice("step-in-backward")
OPTIMIZERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.1, "momentum": 0.9}), "Adam": ("Adam", {"amsgrad": True}), "AdamW": ("AdamW", {}),
    "AdamW foreach": ("AdamW", {"foreach": True}), "AdamW fused": ("AdamW", {"fused": True}),
    "RMSprop": ("RMSprop", {}),
    "Adagrad": ("Adagrad", {}), "Adadelta": ("Adadelta", {}), "Adamax": ("Adamax", {}), "Rprop": ("Rprop", {}),
    "NAdam": ("NAdam", {"foreach": True}), "RAdam": ("RAdam", {"foreach": True}), "ASGD": ("ASGD", {"foreach": True}),
    "Adafactor": ("Adafactor", {}),
}


def two_groups(optimizer: Any, **settings: Any) -> Any:
    """A maker of optimizers over two groups: matrices and the rest."""

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        held = list(parameters)
        return optimizer([{"params": [p for p in held if p.dim() > 1]},
                          {"params": [p for p in held if p.dim() <= 1], "weight_decay": 0.0}], **settings)

    return make


def job_of(optimizer: Any, **more: Any) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6),
                          nn.Linear(6, 9, bias=False))
    model[4].weight = model[0].weight  # tied
    unused = nn.Linear(2, 2)
    model.add_module("unused", nn.Identity())
    model[5].register_parameter("never", unused.weight)
    return Job(model, lambda m, x: m(x).square().mean(), torch.arange(8).reshape(2, 4) % 9, optimizer, **more)


def states(job: Job) -> list[torch.Tensor]:
    return [value for group in job.optimizer.param_groups for p in group["params"]
            for value in job.optimizer.state.get(p, {}).values() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bitwise_with_every_separable_optimizer(kind: str) -> None:
    name, settings = OPTIMIZERS[kind]
    plain, job = (job_of(two_groups(getattr(torch.optim, name), **settings)) for _ in range(2))
    assert STRATEGY.excluded(job, CPU) is None
    undo = apply_choices(job, [CHOICE])
    for _ in range(3):
        assert torch.equal(run_step(plain, plain.batch).loss, run_step(job, job.batch).loss)
    undo()
    run_step(plain, plain.batch), run_step(job, job.batch)  # undone: it goes on as if nothing had been
    for one, two in zip([*plain.model.parameters(), *states(plain)], [*job.model.parameters(), *states(job)],
                        strict=True):
        assert torch.equal(one, two)
    assert [p._post_accumulate_grad_hooks for p in job.model.parameters()] == [None] * 6


def test_gradients_are_gone_and_schedulers_and_step_hooks_see_one_step() -> None:
    job = job_of(torch.optim.AdamW, scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (n + 1)))
    calls: list[str] = []
    job.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    job.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    apply_choices(job, [CHOICE])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            left = []
            run_step(job, job.batch, on_gradients=lambda left=left: left.extend(
                p for p in job.model.parameters() if p.grad is not None))
            assert not left
    assert calls == ["before", "after"] * 2
    assert job.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 / 3)
    assert all(int(state["step"]) == 2 for state in job.optimizer.state.values())


def test_gradients_can_be_seen_before_they_go() -> None:
    plain, job = (job_of(lambda ps: torch.optim.SGD(ps, lr=0.1)) for _ in range(2))
    apply_choices(job, [CHOICE])
    names = {id(p): name for name, p in job.model.named_parameters()}
    seen: dict[str, torch.Tensor] = {}
    job.rules.on_parameter_gradient = lambda p: seen.update({names[id(p)]: copy.deepcopy(p.grad)})
    run_step(job, job.batch)
    expected: dict[str, torch.Tensor] = {}
    run_step(plain, plain.batch, on_gradients=lambda: expected.update(
        {name: p.grad.clone() for name, p in plain.model.named_parameters() if p.grad is not None}))
    assert set(seen) == set(expected)
    assert all(torch.equal(seen[name], gradient) for name, gradient in expected.items())


class GlobalNormSGD(torch.optim.SGD):
    """Scales all gradients by their common norm: coupled."""

    def step(self, closure: Any = None) -> Any:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(held, 0.1)
        return super().step(closure)


class OwnSGD(torch.optim.Optimizer):
    """A user's own, parameter by parameter."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p].setdefault("mean", torch.zeros_like(p)).lerp_(p.grad, 0.1)
                    p -= group["lr"] * self.state[p]["mean"]


@pytest.mark.parametrize(("optimizer", "more", "reason"), [
    (torch.optim.AdamW, {"zero_grad": "before_forward"}, "keeps gradients after the step"),
    (torch.optim.LBFGS, {}, "one vector"),
    (GlobalNormSGD, {}, "not the same as together"),
    (OwnSGD, {}, None),
])
def test_what_excludes_it_is_said(optimizer: Any, more: dict[str, Any], reason: str | None) -> None:
    job = job_of(lambda ps: optimizer(ps, lr=0.1), **more)
    found = STRATEGY.excluded(job, CPU)
    if reason is None:
        assert found is None
        apply_choices(job, [CHOICE])()
        return
    assert reason in str(found)
    with pytest.raises(UsageError, match="step-in-backward: "):
        apply_choices(job, [CHOICE])
    assert not job.rules.optimizer_in_backward
