"""Recomputation by tensor: of what autograd saves, some values are dropped in forward and made again in backward.

Finer than checkpointing by module: batch normalisation, activation functions and residual sums can go while matrix
products and convolutions stay. Bitwise, buffers included: no module code runs twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.hooks import recipes, tensor_recompute
from memfit.hooks.source import source
from memfit.hooks.tensor_recompute import counted_as, parse_tensors, recomputing

if TYPE_CHECKING:
    from memfit.core.device import Device
    from memfit.core.trace import Trace
    from memfit.jobs import Job


class Recompute:
    """`recompute{tensors}`: which operator calls of a forward are made again in backward."""

    name = "recompute"
    settings: tuple[str, ...] = ("tensors",)
    takes = frozenset({"saved tensors"})
    after: tuple[str, ...] = ()
    conflicts: Mapping[str, str] = {
        "checkpoint": "both decide about saved tensors: a checkpointed module saves none for recompute to drop",
    }

    def excluded(self, job: Job, target: Device) -> str | None:
        return None

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return Fidelity.BITWISE

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        return ()  # the planner chooses tensors on each mix's own trace (plan/recomputing.py)

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        try:
            chosen = parse_tensors(settings["tensors"])
        except (KeyError, ValueError, AttributeError):
            raise UsageError(f"recompute: {dict(settings)!r} names no operator calls",
                             'write them as tensors = ["relu:0-3,7"]') from None
        context: Any = partial(recomputing, chosen)
        before = job.rules.contexts
        job.rules.contexts = [*before, context]
        undo.push(lambda: setattr(job.rules, "contexts", before))

    def absent(self, settings: Settings, trace: Trace) -> str | None:
        """One line on calls that a forward, traced without this strategy, does not make; None if it makes all."""
        made = Counter(counted_as(op.name) for op in trace.ops if op.phase == "forward")
        for name, numbers in parse_tensors(settings["tensors"]).items():
            if max(numbers, default=-1) >= made[name]:
                return (f"{name}:{max(numbers)} is no call of this job's forward" if made[name] else
                        f"this job's forward calls no {name}")
        return None

    def code(self, settings: Settings) -> CodePart:
        chosen = f"recomputing(parse_tensors({list(settings['tensors'])!r}))"
        return CodePart(prelude=source(recipes, tensor_recompute), context=chosen)


STRATEGY = Recompute()
