"""`compress-activations`: what autograd saves, in fewer bytes."""

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
from memfit.strategies.exact.compress_activations.codecs import BLOCKS
from memfit.strategies.exact.compress_activations.forward import compressing


class CompressActivations:
    """`bits` (may be left out) says to how many bits saved floating-point numbers are reduced: 8 or 4. Without it only what
    comes back to the bit is compressed: masks, what an activation function needs as a mask, indices."""

    name = "compress-activations"
    settings: tuple[str, ...] = ()
    optional: tuple[str, ...] = ("bits",)
    takes = frozenset({"saved tensors"})
    after: tuple[str, ...] = ()
    conflicts: Mapping[str, str] = {
        "compile": "it looks at each operator of forward, and compiled code has none",
    }

    def excluded(self, job: Job, target: Device) -> str | None:
        return None

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return Fidelity.REDUCED if settings.get("bits") else Fidelity.BITWISE

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        return [{}, *({"bits": bits} for bits in BLOCKS)]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        bits = settings.get("bits")
        if bits is not None and (isinstance(bits, bool) or bits not in BLOCKS):
            raise UsageError(f"compress-activations: bits is {bits!r}", f"one of {', '.join(map(str, BLOCKS))}, or none")
        context: Any = partial(compressing, bits)
        before = job.rules.contexts
        job.rules.contexts = [*before, context]
        undo.push(lambda: setattr(job.rules, "contexts", before))

    def code(self, settings: Settings) -> CodePart | None:
        return None


STRATEGY = CompressActivations()
