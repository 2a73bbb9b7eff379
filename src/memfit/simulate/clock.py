"""How long a traced step takes: each operator by its arithmetic or its memory traffic, whichever is longer."""

from __future__ import annotations

from memfit.core.device import Device
from memfit.core.trace import Kind, Op, Trace

_DENSE = ("mm", "conv", "linear", "attention", "gru", "lstm")
_FALLBACK_RATE = 5e10


def op_seconds(op: Op, device: Device) -> float:
    """Seconds of one operator call: overhead plus the longer of arithmetic and traffic (a roofline)."""
    arithmetic = op.flops / rate(device, op.dtype) if op.flops else 0.0
    return device.overhead_s + max(arithmetic, op.bytes_moved / device.bandwidth)


def rate(device: Device, dtype: str) -> float:
    """Floating-point operations per second for a dtype; float32's where the device names none for it."""
    return device.rates.get(dtype) or device.rates.get("float32") or _FALLBACK_RATE


def step_seconds(trace: Trace, device: Device) -> float:
    """Seconds of the whole step, repeats counted."""
    total = 0.0
    spans = sorted((repeat.start, repeat.stop, repeat.count) for repeat in trace.repeats)
    for position, (kind, index) in enumerate(trace.events):
        if kind == Kind.OP:
            seconds = op_seconds(trace.ops[index], device)
            total += seconds * _times(position, spans)
    return total


def _times(position: int, spans: list[tuple[int, int, int]]) -> int:
    for start, stop, count in spans:
        if start <= position < stop:
            return count
    return 1
