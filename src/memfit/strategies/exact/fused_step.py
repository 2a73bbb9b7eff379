"""The optimizer's fused kernel: one pass over parameters, gradients and states in place of about ten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.core.trace import Trace
from memfit.jobs import Job

_FUSED = frozenset({"SGD", "Adam", "AdamW", "Adagrad"})  # have a fused kernel on the CPU
_NOT_FUSED = ("differentiable", "capturable")


class FusedStep:
    """`fused=True` in every parameter group: the same mathematics, rounded otherwise, and no temporaries."""

    name = "fused-step"
    settings: tuple[str, ...] = ()
    takes: frozenset[str] = frozenset()
    after: tuple[str, ...] = ()
    conflicts: Mapping[str, str] = {"single-tensor-step": "a fused step is one call for all tensors"}

    def excluded(self, job: Job, target: Device) -> str | None:
        optimizer = job.optimizer
        kind = type(optimizer).__name__
        if target.kind not in ("cpu", "any"):
            return f"not chosen for {target.kind} devices"
        if not type(optimizer).__module__.startswith("torch.optim") or kind not in _FUSED:
            return f"{kind} has no fused kernel on the CPU"
        if all(group.get("fused") for group in optimizer.param_groups):
            return f"{kind} is fused already"
        for group in optimizer.param_groups:
            stands = next((name for name in _NOT_FUSED if group.get(name)), None)
            if stands:
                return f"{kind} is {stands}, which excludes its fused kernel"
            if not all(p.is_floating_point() and p.layout == torch.strided for p in group["params"]):
                return f"{kind} steps parameters that its fused kernel does not take"
        return None

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return Fidelity.REORDERED

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        return [{}]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        reason = self.excluded(job, _ANY)
        if reason:
            raise UsageError(f"fused-step: {reason}", "leave it out of the plan")
        for group in job.optimizer.param_groups:
            for name, value in (("fused", True), ("foreach", False)):
                undo.push(partial(group.__setitem__, name, group.get(name)))
                group[name] = value

    def code(self, settings: Settings) -> CodePart:
        return CodePart(setup=_SETUP)


_ANY = Device("any", "any", 0, {}, 1.0)

_SETUP = """
for group in optimizer.param_groups:  # one pass over parameters, gradients and states in place of about ten
    group["fused"], group["foreach"] = True, False
""".strip()

STRATEGY = FusedStep()
