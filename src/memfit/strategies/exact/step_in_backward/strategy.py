"""`step-in-backward`: post-accumulate hooks that step a parameter and drop its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.core.trace import Trace
from memfit.hooks import source
from memfit.jobs import Job
from memfit.strategies.exact.step_in_backward import one
from memfit.strategies.exact.step_in_backward.separable import why_coupled


class StepInBackward:
    """No settings. `job.rules.on_parameter_gradient` sees each gradient before it is gone."""

    name = "step-in-backward"
    settings: tuple[str, ...] = ()
    takes = frozenset({"gradient lifetime"})
    after: tuple[str, ...] = ("single-tensor-step",)
    conflicts: Mapping[str, str] = {
        "micro-batches": "gradients must live until the last micro-batch has added to them",
    }

    def excluded(self, job: Job, target: Device) -> str | None:
        if job.clip_norm is not None:
            return f"clipping to norm {job.clip_norm:g} needs all gradients at once"
        if job.zero_grad != "after_step":
            return f"the job keeps gradients after the step (zero_grad={job.zero_grad})"
        return why_coupled(job.optimizer)

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return Fidelity.BITWISE

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        return [{}]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        reason = self.excluded(job, _ANY)
        if reason:
            raise UsageError(f"step-in-backward: {reason}", "leave it out of the plan")
        for group in job.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    _hook(parameter, partial(step_now, job, group), undo)
        undo.push(partial(setattr, job.rules, "optimizer_in_backward", job.rules.optimizer_in_backward))
        job.rules.optimizer_in_backward = True

    def code(self, settings: Settings) -> CodePart:
        return CodePart(prelude=f"from functools import partial\n{source(one)}\n\n\n{_STEP_NOW}", setup=_SETUP)


def step_now(job: Job, group: dict[str, Any], parameter: torch.Tensor) -> None:
    """The gradient of `parameter` is whole: step it, and let the gradient go."""
    if job.rules.on_parameter_gradient is not None:
        job.rules.on_parameter_gradient(parameter)
    one.step_one(job.optimizer, group, parameter)
    parameter.grad = None


def _hook(parameter: torch.Tensor, hook: Any, undo: Undo) -> None:
    fresh = parameter._post_accumulate_grad_hooks is None
    handle = parameter.register_post_accumulate_grad_hook(hook)
    undo.push(partial(_unhook, parameter, handle, fresh))


def _unhook(parameter: Any, handle: Any, fresh: bool) -> None:
    handle.remove()
    if fresh and not parameter._post_accumulate_grad_hooks:
        parameter._post_accumulate_grad_hooks = None


_ANY = Device("any", "cpu", 0, {}, 1.0)

_STEP_NOW = '''
def step_now(optimizer, group, parameter):
    """The gradient of `parameter` is whole: step it, and let the gradient go."""
    step_one(optimizer, group, parameter)
    parameter.grad = None
'''.strip()

_SETUP = """
for group in optimizer.param_groups:  # each parameter steps in backward; optimizer.step() then finds no gradients
    for parameter in group["params"]:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(partial(step_now, optimizer, group))
""".strip()

STRATEGY = StepInBackward()
