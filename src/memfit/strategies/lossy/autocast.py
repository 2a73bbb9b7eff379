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
from memfit.jobs.scaling import LossScaling

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_FASTER = 1.2  # float16 is worth its loss scaling only where it is so much faster
_NATIVE_BFLOAT16 = (8, 0)  # compute capability from which cards have units for it


class Autocast:
    """`torch.autocast` around each forward. `dtype` is `bfloat16`, which has the range of float32, or `float16`, which
    has not: its losses are scaled, and a step is left out where a gradient is not finite."""

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
        """bfloat16; float16 only where the target computes it and bfloat16 is emulated there, or much slower."""
        rates = target.rates
        native = target.kind != "cuda" or (target.compute_capability or _NATIVE_BFLOAT16) >= _NATIVE_BFLOAT16
        slow = not native or rates.get("float16", 0.0) > _FASTER * rates.get("bfloat16", 0.0)
        return [{"dtype": "bfloat16"}, *([{"dtype": "float16"}] if slow and rates.get("float16") else [])]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        name = settings.get("dtype")
        if name not in _DTYPES:
            raise UsageError(f"autocast: dtype is {name!r}", f"one of {', '.join(_DTYPES)}")
        device = next(job.model.parameters()).device.type
        if name == "float16":
            _scale_losses(job, device, undo)
        before = job.rules.contexts
        undo.push(partial(setattr, job.rules, "contexts", before))
        job.rules.contexts = [*before, partial(torch.autocast, device, dtype=_DTYPES[name])]

    def code(self, settings: Settings) -> CodePart:
        device = "next(model.parameters()).device.type"
        scaler = f"torch.amp.GradScaler({device})" if settings["dtype"] == "float16" else ""
        return CodePart(context=f"torch.autocast({device}, dtype=torch.{settings['dtype']})", scaler=scaler)


def _scale_losses(job: Job, device: str, undo: Undo) -> None:
    half = [name for name, p in job.model.named_parameters() if p.requires_grad and p.dtype == torch.float16]
    if half:
        raise UsageError(f"autocast: {len(half)} parameters are float16 themselves (first {half[0]}), and loss scaling "
                         "cannot unscale their gradients", "keep parameters in float32 (model.float()), or use bfloat16")
    undo.push(partial(setattr, job.rules, "scaling", job.rules.scaling))
    job.rules.scaling = LossScaling(device)


STRATEGY = Autocast()
