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
from memfit.hooks.apart import one, why_coupled
from memfit.jobs import Job
from memfit.strategies.exact.step_in_backward.release import PREVIOUS, TWO_PASS, OneByOne


class StepInBackward:
    """`clipping` (may be left out) says how a job's gradients are clipped that are not alive together: `two-pass`, by a
    pass that only measures the norm, or `previous`, by the norm of the window before."""

    name = "step-in-backward"
    settings: tuple[str, ...] = ()
    optional: tuple[str, ...] = ("clipping",)
    takes = frozenset({"gradient lifetime"})
    after: tuple[str, ...] = (
        "single-tensor-step", "fused-step", "autocast", "optimizer-8bit", "optimizer-4bit", "optimizer-fp8",
        "optimizer-bf16", "optimizer-factored", "low-precision-parameters", "lora", "qlora")
    conflicts: Mapping[str, str] = {}

    def excluded(self, job: Job, target: Device) -> str | None:
        if job.zero_grad != "after_step":
            return f"the job keeps gradients after the step (zero_grad={job.zero_grad})"
        return why_coupled(job.optimizer)

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        if job.clip_norm is None:
            return Fidelity.BITWISE
        if settings.get("clipping") == PREVIOUS:
            return Fidelity.ADAPTED
        kinds = {(p.device, p.dtype) for group in job.optimizer.param_groups for p in group["params"]}
        return Fidelity.BITWISE if len(kinds) == 1 else Fidelity.REORDERED  # norms are added up dtype by dtype in plain

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        return [{}] if job.clip_norm is None else [{"clipping": TWO_PASS}, {"clipping": PREVIOUS}]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        clipping = settings.get("clipping", TWO_PASS)
        if clipping not in (TWO_PASS, PREVIOUS):
            raise UsageError(f"step-in-backward: clipping is {clipping!r}", f"one of {TWO_PASS}, {PREVIOUS}")
        reason = self.excluded(job, _ANY)
        if reason:
            raise UsageError(f"step-in-backward: {reason}", "leave it out of the plan")
        if job.rules.scaling is not None:
            raise UsageError("step-in-backward and autocast in float16 cannot be combined (gradient lifetime): whether a "
                             "step is skipped is known only once all gradients are there",
                             "use autocast in bfloat16, or drop one of them from the plan")
        release = OneByOne(clipping)
        undo.push(partial(setattr, job.rules, "release", job.rules.release))
        job.rules.release = release
        for group in job.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    _hook(parameter, partial(release.gradient, job), undo)

    def code(self, settings: Settings) -> CodePart:
        return CodePart(prelude=f"from functools import partial\n{source(one)}\n\n\n{_STEP_NOW}", setup=_SETUP,
                        in_backward="step_now")


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
    """The gradient of `parameter` is whole, unless other parts will add to it: step it, and let the gradient go."""
    if not step_now.waiting:
        step_one(optimizer, group, parameter)
        parameter.grad = None


step_now.waiting = False
'''.strip()

_SETUP = """
for group in optimizer.param_groups:  # each parameter steps in backward; optimizer.step() then finds no gradients
    for parameter in group["params"]:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(partial(step_now, optimizer, group))
""".strip()

STRATEGY = StepInBackward()
