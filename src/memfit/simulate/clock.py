"""How long a traced step takes: each operator by what calls like it took on this machine, and by where in the caches its
tensors are; else by its arithmetic or its memory traffic, whichever is longer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from memfit.core.costs import Costs
from memfit.core.device import Device
from memfit.core.trace import Kind, Op, Storage, Trace
from memfit.simulate.away import with_transfers

_FALLBACK_RATE = 5e10
_UNWRITTEN = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_"})
_PICKING = frozenset({"embedding", "index_select", "gather", "index"})  # read as much as they write, of a large table
_COPIED = 2 / 3  # of what a trace counts for a copy: its target counts twice there, and is written only
# Compiled kernels: the operator that takes like them, and how many times that they take. Functions: a compiled GELU took 1.2 to
# 1.8 times the operator's time for a quarter to four million elements.
_LIKE = {"fused": ("mul", 1.0), "fused_functions": ("gelu", 1.4), "fused_random": ("bernoulli_", 1.0)}
_FAR = 1e12


def op_seconds(op: Op, device: Device) -> float:
    """Seconds of one operator call whose tensors were not used for long: its kernel, and what the host does for it."""
    return _host_seconds(op, device) + _far_seconds(op, device)


def again_seconds(op: Op, device: Device) -> float:
    """Seconds of a forward operator that is run again from its recipe."""
    over = device.costs.overheads.get("again", device.overhead_s) if device.costs is not None else device.overhead_s
    return over + _far_seconds(op, device)


def rate(device: Device, dtype: str) -> float:
    """Floating-point operations per second for a dtype; float32's where the device names none for it."""
    return device.rates.get(dtype) or device.rates.get("float32") or _FALLBACK_RATE


def step_seconds(trace: Trace, device: Device, *, hooked: bool = False) -> float:
    """Seconds of the whole step, repeats counted. `hooked`: a Python hook sees every operator of forward."""
    return sum(phase_seconds(trace, device, hooked=hooked).values())


def phase_seconds(trace: Trace, device: Device, *, hooked: bool = False) -> dict[str, float]:
    """The same by phase: forward, backward, optimizer."""
    found: dict[str, float] = defaultdict(float)
    spans = sorted((repeat.start, repeat.stop, repeat.count) for repeat in trace.repeats)
    extra = device.costs.overheads.get("hooked", 0.0) if hooked and device.costs is not None else 0.0
    touched = _Touched(trace, device.costs) if device.costs is not None else None
    for position, (kind, index) in enumerate(trace.events):
        if kind == Kind.OP:
            op = trace.ops[index]
            seconds = _host_seconds(op, device) + (extra if op.phase == "forward" else 0.0)
            seconds += touched.seconds(op, device) if touched is not None else _kernel_seconds(op, device)
            found[op.phase] += seconds * _times(position, spans)
        elif touched is not None:
            touched.event(kind, index)
    return with_transfers(dict(found), trace, device)


class _Touched:
    """When each storage was last used, in bytes touched since the step began. Blocks are reused last freed first, as
    allocators do, so a new storage is as warm as the block that it gets."""

    def __init__(self, trace: Trace, costs: Costs) -> None:
        self._storages, self._costs = trace.storages, costs
        self._now = 0.0
        self._last: dict[int, float] = {}
        self._freed: dict[int, list[float]] = defaultdict(list)

    def event(self, kind: int, index: int) -> None:
        """A storage is born in the block of its size that was freed last, or dies and frees its own."""
        blocks = self._freed[self._storages[index].size_bytes]
        if kind == Kind.DEATH:
            last = self._last.pop(index, None)
            if last is not None:
                blocks.append(last)
        elif blocks:
            self._last[index] = blocks.pop()

    def seconds(self, op: Op, device: Device) -> float:
        """Seconds of the operator's kernel with its tensors where they are; they are touched."""
        if op.name in _UNWRITTEN:
            return 0.0
        moved = _moved(op, self._storages)
        total = slow = 0.0
        for index in (*op.reads, *op.writes):
            nbytes = self._storages[index].size_bytes
            total += nbytes
            slow += nbytes / self._costs.stream(self._now - self._last.get(index, -_FAR))
            self._last[index] = self._now  # its first bytes: those of the next use are as far away as this operator moves
        self._now += moved
        return _with_traffic(_kernel_seconds(op, device), moved, moved * slow / total if total else 0.0, self._costs)


def _moved(op: Op, storages: Sequence[Storage]) -> float:
    if op.name in _PICKING:
        return 2.0 * sum(storages[index].size_bytes for index in op.writes)
    return op.bytes_moved * _COPIED if op.name == "copy_" else float(op.bytes_moved)


def _far_seconds(op: Op, device: Device) -> float:
    """The kernel, all its tensors in main memory."""
    kernel_s = _kernel_seconds(op, device)
    if device.costs is None or op.name in _UNWRITTEN or op.name in _PICKING:
        return kernel_s
    return _with_traffic(kernel_s, op.bytes_moved, op.bytes_moved / device.costs.stream(_FAR), device.costs)


def _with_traffic(kernel_s: float, moved: float, moving_s: float, costs: Costs) -> float:
    """A kernel was timed with its tensors at hand: what that traffic took is replaced by what it takes from where they are."""
    return moving_s + max(0.0, kernel_s - moved / costs.stream(1.0))


def _host_seconds(op: Op, device: Device) -> float:
    if device.costs is None:
        return device.overhead_s
    return device.costs.overheads.get("again" if op.recomputed else op.phase, 0.0)


def _kernel_seconds(op: Op, device: Device) -> float:
    if op.name in _UNWRITTEN:
        return 0.0
    if device.costs is not None:
        name, times = _LIKE.get(op.name, (op.name, 1.0))
        seconds = device.costs.seconds(name, op.dtype, op.flops, op.bytes_moved)
        if seconds is None and not op.flops:
            seconds = device.costs.seconds("mul", op.dtype, 0, op.bytes_moved)
        if seconds is not None:
            return seconds * times
    arithmetic = op.flops / rate(device, op.dtype) if op.flops else 0.0
    return max(arithmetic, op.bytes_moved / device.bandwidth)


def _times(position: int, spans: list[tuple[int, int, int]]) -> int:
    for start, stop, count in spans:
        if start <= position < stop:
            return count
    return 1
