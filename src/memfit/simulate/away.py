"""What a step has away from the device, on the host or on disk: how much at most, and how long its transfers take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from memfit.core.device import Device
from memfit.core.trace import Kind, Op, Trace

_UNREAD = frozenset({"copy_"})  # writes its first argument without reading it
_OVERLAPPED = "host"  # copies to and from a card run beside its kernels
_WRITTEN_BACK_S = 30.0  # Linux writes changed pages back when they are this old (vm.dirty_expire_centisecs)


def away_peaks(trace: Trace) -> dict[str, int]:
    """Highest bytes alive at a time, by place."""
    now: dict[str, int] = defaultdict(int)
    for storage in trace.storages[: trace.resident]:
        if storage.place:
            now[storage.place] += storage.away_bytes
    highest = dict(now)
    for kind, index in trace.events:
        storage = trace.storages[index] if kind != Kind.OP else None
        if storage is not None and storage.place:
            now[storage.place] += storage.away_bytes if kind == Kind.BIRTH else -storage.away_bytes
            highest[storage.place] = max(highest.get(storage.place, 0), now[storage.place])
    return highest


def with_transfers(seconds: dict[str, float], trace: Trace, device: Device) -> dict[str, float]:
    """Seconds by phase, with what crosses to and from other places: each storage once a phase and direction.

    The system holds the pages of files in memory that nobody else needs. As long as it can, a mapped tensor costs only what
    changing a page costs that has been written back meanwhile; beyond `Disk.cached_bytes` all goes through the disk.
    """
    if not any(storage.away_bytes for storage in trace.storages):
        return seconds
    held = device.disk is not None and away_peaks(trace).get("disk", 0) <= device.disk.cached_bytes
    found, step_s = dict(seconds), sum(seconds.values())
    for phase, place, write, nbytes in _moves(trace):
        rate = _rate(device, place, write, held)
        moving_s = nbytes / rate if rate else 0.0
        if held and place != _OVERLAPPED:  # only what was written back since the last step costs anything
            moving_s *= min(1.0, step_s / _WRITTEN_BACK_S)
        alone_s = found.get(phase, 0.0)
        found[phase] = max(alone_s, moving_s) if place == _OVERLAPPED else alone_s + moving_s
    return found


def _rate(device: Device, place: str, write: bool, held: bool) -> float | None:
    if place == _OVERLAPPED:
        return device.link
    if device.disk is None:
        return None
    if held:
        return device.disk.rewrite if write else None
    return device.disk.write if write else device.disk.read


def _moves(trace: Trace) -> Iterator[tuple[str, str, bool, int]]:
    """`(phase, place, written, bytes)`, all micro-batches together."""
    total: dict[tuple[str, str, bool], int] = defaultdict(int)
    seen: set[tuple[int, int, bool]] = set()
    starts = [start for _, start in trace.phases]
    number = -1
    for (position, (kind, index)), times in zip(enumerate(trace.events), trace.weights(), strict=True):
        while number + 1 < len(starts) and starts[number + 1] <= position:
            number += 1
        if kind != Kind.OP:
            continue
        op = trace.ops[index]
        for storage, write in _touched(op, trace):
            if (number, storage, write) not in seen:
                seen.add((number, storage, write))
                one = trace.storages[storage]
                total[op.phase, one.place, write] += one.away_bytes * times
    for (phase, place, write), nbytes in total.items():
        yield phase, place, write, nbytes


def _touched(op: Op, trace: Trace) -> Iterator[tuple[int, bool]]:
    """The away storages that an operator reads and writes. One without outputs works on its arguments in place."""
    reads = op.reads[1:] if op.name in _UNREAD else op.reads
    for storage in reads:
        if trace.storages[storage].place:
            yield storage, False
    for storage in op.writes or op.reads:
        if trace.storages[storage].place:
            yield storage, True
