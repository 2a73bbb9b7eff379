"""Mixed precision: matrix products and convolutions in 16 bit, parameters and optimizer in 32."""

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

_DTYPES = {"bfloat16": torch.bfloat16}


class Autocast:
    """`torch.autocast` around each forward. `dtype` is `bfloat16`: it has the range of float32, so no loss scaling."""

    name = "autocast"
    settings: tuple[str, ...] = ("dtype",)
    takes = frozenset({"precision"})
    after: tuple[str, ...] = ()
    conflicts: Mapping[str, str] = {}

    def excluded(self, job: Job, target: Device) -> str | None:
        dtypes = {p.dtype for p in job.model.parameters() if p.is_floating_point()}
        if torch.float32 not in dtypes:
            held = ", ".join(sorted(str(dtype)[6:] for dtype in dtypes)) or "no floating-point numbers"
            return f"the parameters are {held}, not float32"
        return None

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return Fidelity.REDUCED

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        return [{"dtype": name} for name in _DTYPES]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        name = settings.get("dtype")
        if name not in _DTYPES:
            raise UsageError(f"autocast: dtype is {name!r}", f"one of {', '.join(_DTYPES)}")
        before = job.rules.contexts
        undo.push(partial(setattr, job.rules, "contexts", before))
        device = next(job.model.parameters()).device.type
        job.rules.contexts = [*before, partial(torch.autocast, device, dtype=_DTYPES[name])]

    def code(self, settings: Settings) -> CodePart:
        device = "next(model.parameters()).device.type"
        return CodePart(context=f"torch.autocast({device}, dtype=torch.{settings['dtype']})")


STRATEGY = Autocast()
