"""Comparing runs: at the fidelity that was declared, and a job with itself before and after."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from memfit.core.fidelity import Fidelity
from memfit.jobs import Job, run_step

Tensors = dict[str, torch.Tensor]


@dataclass
class Outcome:
    """What a few steps gave: losses and gradients of each, and everything that a checkpoint would hold after them."""

    losses: list[torch.Tensor]
    gradients: list[Tensors]
    after_first: Tensors
    parameters: Tensors
    states: Tensors
    buffers: Tensors


def outcome(job: Job, steps: int = 3, seed: int = 5) -> Outcome:
    """Train for some steps from one seed."""
    losses, gradients, after_first = [], [], {}
    torch.manual_seed(seed)
    for step in range(steps):
        losses.append(train_once(job, gradients))
        if step == 0:
            after_first = _copied(dict(job.model.named_buffers()))
    return Outcome(losses, gradients, after_first, _copied(dict(job.model.named_parameters())), _states(job),
                   _copied(dict(job.model.named_buffers())))


def train_once(job: Job, gradients: list[Tensors]) -> torch.Tensor:
    """One step, its gradients appended wherever the plan lets them be seen; the loss."""
    names = {id(p): name for name, p in job.model.named_parameters()}
    seen: Tensors = {}

    def note(parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            seen[names[id(parameter)]] = parameter.grad.clone()

    job.rules.on_parameter_gradient = note if job.rules.optimizer_in_backward else None
    result = run_step(job, job.batch, on_gradients=lambda: [note(p) for p in job.model.parameters()])
    job.rules.on_parameter_gradient = None
    gradients.append(seen)
    return result.loss.clone()


def check(plain: Outcome, planned: Outcome, fidelity: Fidelity) -> None:
    """Assert what the contract says of this fidelity."""
    assert [set(one) for one in plain.gradients] == [set(one) for one in planned.gradients]
    if fidelity is Fidelity.BITWISE:
        _equal(plain, planned)
    elif fidelity in (Fidelity.REORDERED, Fidelity.RESAMPLED):
        _close(plain, planned)
    elif fidelity is Fidelity.REDUCED:
        for one, other in zip(plain.losses, planned.losses, strict=True):
            assert abs(one - other) <= 0.01 * abs(one)
    else:
        assert all(torch.isfinite(loss) for loss in planned.losses)


def _equal(plain: Outcome, planned: Outcome) -> None:
    for one, other in zip(plain.losses, planned.losses, strict=True):
        assert torch.equal(one, other)
    for one, other in [*zip(plain.gradients, planned.gradients, strict=True), (plain.parameters, planned.parameters),
                       (plain.states, planned.states), (plain.buffers, planned.buffers)]:
        assert set(one) == set(other)
        for name in one:
            assert torch.equal(one[name], other[name]), name


def _close(plain: Outcome, planned: Outcome) -> None:
    """Relative L2 of 1e-5 on loss and gradients at the first step (small gradients against the whole), the buffers
    then to 1e-6, later losses to 1e-4."""
    assert relative(plain.losses[0], planned.losses[0]) <= 1e-5
    whole = torch.stack([g.norm() for g in plain.gradients[0].values()]).norm()
    for name, gradient in plain.gradients[0].items():
        size = gradient.norm() if gradient.norm() >= 1e-6 * whole else whole
        assert (gradient - planned.gradients[0][name]).norm() <= 1e-5 * size, name
    for name, buffer in plain.after_first.items():
        assert relative(buffer.double(), planned.after_first[name].double()) <= 1e-6, name
    for one, other in zip(plain.losses[1:], planned.losses[1:], strict=True):
        assert relative(one, other) <= 1e-4


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / one.norm().clamp_min(1e-30))


def snapshot(job: Job) -> dict[str, Any]:
    """All that applying may touch, by identity where it is an object: equal before and after an undo."""
    modules = {path: _attributes(module) for path, module in job.model.named_modules()}
    hooks = {name: (p._backward_hooks, copy.copy(p._post_accumulate_grad_hooks), p.requires_grad, p.grad)
             for name, p in job.model.named_parameters()}
    groups = [{key: [id(p) for p in value] if key == "params" else value for key, value in group.items()}
              for group in job.optimizer.param_groups]
    return {
        "modules": modules, "hooks": hooks, "groups": groups, "rules": copy.copy(job.rules),
        "group ids": [id(group) for group in job.optimizer.param_groups], "loss": job.loss,
        "contexts": list(job.rules.contexts), "states": list(_states(job)),
        "optimizer": sorted({*vars(job.optimizer)} - {"_opt_called"}), "keys": list(job.model.state_dict()),
    }


def _attributes(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """Attributes in order: containers by their contents, the rest by identity."""
    return [(name, [(key, id(inner)) for key, inner in value.items()] if isinstance(value, dict) else id(value))
            for name, value in vars(module).items()]


def _states(job: Job) -> Tensors:
    names = {id(p): name for name, p in job.model.named_parameters()}
    return {f"{names[id(p)]}.{key}": value.clone() for p, state in job.optimizer.state.items()
            for key, value in state.items() if isinstance(value, torch.Tensor)}


def _copied(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
