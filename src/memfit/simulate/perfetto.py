"""Chrome trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open: memory as counters, time as slices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memfit.core.errors import UsageError
from memfit.core.files import write_atomic
from memfit.core.trace import CATEGORIES, Kind, Trace
from memfit.simulate.cuda_log import LogEntry

_PROCESS, _PHASES, _OPERATORS = 1, 1, 2
Sample = tuple[float, Mapping[str, int]]  # microseconds, bytes by name
Slice = tuple[str, float, float]  # name, start and length in microseconds


def category_samples(trace: Trace, times_us: Sequence[float] | None = None) -> Iterator[Sample]:
    """Live bytes by category, before the step and after each event that changes them.

    `times_us` has the time of each event; without it an event takes a microsecond. Scratch memory of an operator
    counts as workspace for the moment of its event.
    """
    totals: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
    for storage in trace.storages[: trace.resident]:
        totals[storage.category] += storage.nbytes
    yield 0.0, dict(totals)
    for position, (kind, index) in enumerate(trace.events):
        time_us = times_us[position] if times_us is not None else position + 1.0
        if kind == Kind.OP:
            scratch = trace.ops[index].scratch_bytes
            if scratch:
                yield time_us, {**totals, "workspace": totals["workspace"] + scratch}
                yield time_us, dict(totals)
            continue
        storage = trace.storages[index]
        totals[storage.category] += storage.nbytes if kind == Kind.BIRTH else -storage.nbytes
        yield time_us, dict(totals)


def allocator_samples(log: Iterable[LogEntry], allocated_bytes: int = 0, reserved_bytes: int = 0) -> Iterator[Sample]:
    """What blocks were asked for and what segments hold, after each event of an allocator's log."""
    requested, reserved = allocated_bytes, reserved_bytes
    for entry in log:
        if entry.action == "alloc":
            requested += entry.size
        elif entry.action == "free_requested":
            requested -= entry.size
        elif entry.action in ("segment_alloc", "segment_map"):
            reserved += entry.size
        elif entry.action in ("segment_free", "segment_unmap"):
            reserved -= entry.size
        else:
            continue
        yield float(entry.time_us), {"requested": requested, "reserved": reserved}


def phase_slices(trace: Trace, times_us: Sequence[float] | None = None) -> list[Slice]:
    """The phases of a step as slices."""
    def at(event: int) -> float:
        if times_us is None or event == 0:
            return float(event)
        return times_us[min(event, len(times_us)) - 1]

    ends = [first for _, first in trace.phases[1:]] + [len(trace.events)]
    return [(name, at(first), at(end) - at(first)) for (name, first), end in zip(trace.phases, ends, strict=True)]


def chrome_trace(counters: Mapping[str, Iterable[Sample]], phases: Iterable[Slice] = (),
                 operators: Iterable[Slice] = (), title: str = "memfit") -> dict[str, Any]:
    """The trace as plain data: a counter track for each entry of `counters`, and two rows of slices.

    Raises UsageError where a counter goes back in time, which the viewers show wrongly.
    """
    events: list[dict[str, Any]] = [_name("process_name", 0, title), _name("thread_name", _PHASES, "phases"),
                                    _name("thread_name", _OPERATORS, "operators")]
    for track, samples in counters.items():
        last = float("-inf")
        for time_us, values in samples:
            if time_us < last:
                raise UsageError(f"counter {track!r} goes back in time, from {last:g} to {time_us:g} us",
                                 "give the samples in order of time")
            last = time_us
            events.append({"ph": "C", "pid": _PROCESS, "tid": 0, "name": track, "ts": time_us, "args": dict(values)})
    for row, slices in ((_PHASES, phases), (_OPERATORS, operators)):
        events += [{"ph": "X", "pid": _PROCESS, "tid": row, "name": name, "ts": start, "dur": length, "cat": "step"}
                   for name, start, length in slices]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_chrome_trace(path: Path, content: Mapping[str, Any]) -> None:
    """Write what `chrome_trace` gives to a file. Raises UsageError if it cannot be written."""
    write_atomic(path, json.dumps(content, separators=(",", ":")))


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": kind, "args": {"name": name}}
