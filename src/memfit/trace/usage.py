"""A trace as a curve: bytes alive after each event, and where each storage lives on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memfit.core.trace import Kind, Trace

Curve = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Usage:
    """`curve[i]` is what is alive at event `i` (a kernel's scratch included); storages live in `[birth, death)`."""

    curve: Curve
    birth: Curve
    death: Curve

    @property
    def peak_bytes(self) -> int:
        return int(self.curve.max()) if len(self.curve) else 0


def usage(trace: Trace) -> Usage:
    """The curve of a trace; storages that outlive the step die at its end."""
    count, events = len(trace.storages), len(trace.events)
    birth, death = np.zeros(count, np.int64), np.full(count, events, np.int64)
    change, scratch = np.zeros(events, np.int64), np.zeros(events, np.int64)
    for position, (kind, index) in enumerate(trace.events):
        if kind == Kind.BIRTH:
            birth[index] = position
            change[position] = trace.storages[index].nbytes
        elif kind == Kind.DEATH:
            death[index] = position
            change[position] = -trace.storages[index].nbytes
        else:
            scratch[position] = trace.ops[index].scratch_bytes
    return Usage(trace.resident_bytes + np.cumsum(change) + scratch, birth, death)
