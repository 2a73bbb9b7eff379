"""What checkpointing a module would free and cost, read off a trace of the step without it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from memfit.core.trace import Kind, ModuleCall, Trace
from memfit.trace.usage import Usage


@dataclass(frozen=True)
class SegmentCall:
    """One call of a segment: `saved` storages could be dropped from `stop` until its backward begins at `back`;
    `inputs` must then live until `back`. `transient_bytes` is what running it needs above what it leaves."""

    start: int
    stop: int
    back: int
    saved: tuple[int, ...]
    inputs: tuple[int, ...]
    transient_bytes: int


@dataclass(frozen=True)
class Segment:
    """A module as a checkpointing candidate; `ops` are the forward operators to run again."""

    path: str
    calls: tuple[SegmentCall, ...]
    ops: tuple[int, ...]
    saved_bytes: int
    kept_bytes: int

    @property
    def frees_bytes(self) -> int:
        """What it saves between forward and backward; not positive for a segment that saves nothing."""
        return self.saved_bytes - self.kept_bytes


def segments(trace: Trace, use: Usage) -> list[Segment]:
    """Every module called in forward, in order of its first call (outer before inner)."""
    grouped: dict[str, list[ModuleCall]] = defaultdict(list)
    for call in sorted(trace.calls, key=lambda call: (call.start, -call.stop)):
        grouped[call.path].append(call)
    backs = _backward_starts(trace)
    found = [_segment(trace, use, path, calls, backs) for path, calls in grouped.items() if path]
    return [segment for segment in found if segment is not None]


def _segment(
    trace: Trace, use: Usage, path: str, calls: list[ModuleCall], backs: dict[int, list[tuple[int, str]]]
) -> Segment | None:
    parts, ops, saved_bytes, kept_bytes = [], [], 0, 0
    for call in calls:
        phase_at, phase_stop = _backward_after(trace, call)
        back = next((at for at, module in backs.get(phase_at, ()) if _inside(module, path)), None)
        if back is None:
            return None
        outputs = set(call.outputs)
        born = [trace.events[i] for i in range(call.start, call.stop)]
        saved = tuple(i for kind, i in born if kind == Kind.BIRTH and i not in outputs
                      and call.stop <= use.death[i] and use.death[i] >= back and use.death[i] <= phase_stop)
        inputs = tuple(i for i in call.inputs if i >= trace.resident)
        window = use.curve[call.start:call.stop]
        transient = int(window.max()) - int(use.curve[call.stop - 1]) if len(window) else 0
        ops.extend(i for kind, i in born if kind == Kind.OP)
        parts.append(SegmentCall(call.start, call.stop, back, saved, inputs, max(0, transient)))
        saved_bytes += sum(trace.storages[i].nbytes for i in saved)
        kept_bytes += sum(trace.storages[i].nbytes for i in inputs if use.death[i] < back)
    return Segment(path, tuple(parts), tuple(ops), saved_bytes, kept_bytes)


def _inside(module: str, path: str) -> bool:
    return module == path or module.startswith(path + ".")


def _backward_starts(trace: Trace) -> dict[int, list[tuple[int, str]]]:
    """For each backward phase (by its first event): the first event of each module in it."""
    found: dict[int, list[tuple[int, str]]] = {}
    bounds = [*(at for _, at in trace.phases), len(trace.events)]
    for place, (name, at) in enumerate(trace.phases):
        if name != "backward":
            continue
        seen: set[str] = set()
        first: list[tuple[int, str]] = []
        for position in range(at, bounds[place + 1]):
            kind, index = trace.events[position]
            if kind == Kind.OP and trace.ops[index].module not in seen:
                seen.add(trace.ops[index].module)
                first.append((position, trace.ops[index].module))
        found[at] = first
    return found


def _backward_after(trace: Trace, call: ModuleCall) -> tuple[int, int]:
    for place, (name, at) in enumerate(trace.phases):
        if name == "backward" and at >= call.stop:
            stop = trace.phases[place + 1][1] if place + 1 < len(trace.phases) else len(trace.events)
            return at, stop
    return -1, -1
