"""Optimizer steps one tensor at a time: a multi-tensor ("foreach") step has temporaries as large as the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.core.trace import Trace
from memfit.jobs import Job

# Of torch's optimizers these give the same bits in both forms; the others order their operations differently.
_SAME_BITS = frozenset({"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Rprop"})


class SingleTensorStep:
    """`foreach=False` in every parameter group that is not fused."""

    name = "single-tensor-step"
    settings: tuple[str, ...] = ()
    takes: frozenset[str] = frozenset()
    after: tuple[str, ...] = ()
    conflicts: Mapping[str, str] = {}

    def excluded(self, job: Job, target: Device) -> str | None:
        groups = job.optimizer.param_groups
        kind = type(job.optimizer).__name__
        if not any("foreach" in group for group in groups):
            return f"{kind} has no multi-tensor form"
        if all(group.get("fused") for group in groups):
            return f"{kind} is fused: its step has no temporaries"
        if all(_single(group, target) for group in groups):
            return f"{kind} already steps one tensor at a time on {target.name}"
        return None

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return Fidelity.BITWISE if type(job.optimizer).__name__ in _SAME_BITS else Fidelity.REORDERED

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        return [{}]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        groups = [group for group in job.optimizer.param_groups if "foreach" in group and not group.get("fused")]
        if not groups:
            raise UsageError(f"single-tensor-step: {type(job.optimizer).__name__} has no multi-tensor form",
                             "leave it out of the plan")
        for group in groups:
            undo.push(partial(group.__setitem__, "foreach", group["foreach"]))
            group["foreach"] = False

    def code(self, settings: Settings) -> CodePart:
        return CodePart(setup=_SETUP)


def _single(group: Mapping[str, Any], target: Device) -> bool:
    foreach = group.get("foreach")
    return foreach is False or bool(group.get("fused")) or (foreach is None and target.kind == "cpu")


_SETUP = """
for group in optimizer.param_groups:  # one tensor at a time: no temporaries as large as the model
    if "foreach" in group and not group.get("fused"):
        group["foreach"] = False
""".strip()

STRATEGY = SingleTensorStep()
