"""A strategy that exchanges a job's Adam for one with smaller states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.core.trace import Trace
from memfit.hooks.moments.exchange import exchange, why_not
from memfit.jobs import Job


@dataclass(frozen=True)
class ReducedMoments:
    """`kinds`: what an Adam and what an AdamW becomes. No settings; there is no form of it in plain PyTorch."""

    name: str
    kinds: tuple[type, type]
    gives: Fidelity = Fidelity.REDUCED
    settings: tuple[str, ...] = ()
    takes: frozenset[str] = frozenset({"optimizer state"})
    after: tuple[str, ...] = ("fused-step", "single-tensor-step")  # those act on what the tensors that stay float32 do
    conflicts: Mapping[str, str] = field(default_factory=dict)

    def excluded(self, job: Job, target: Device) -> str | None:
        return why_not(job.optimizer)

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return self.gives

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        return [{}]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        reason = why_not(job.optimizer)
        if reason:
            raise UsageError(f"{self.name}: {reason}", "leave it out of the plan")
        exchange(job.optimizer, self.kinds, undo)

    def code(self, settings: Settings) -> CodePart | None:
        return None
