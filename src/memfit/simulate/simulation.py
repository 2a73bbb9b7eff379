"""A trace replayed on a device: how many bytes are alive when, at most, and what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.results import AtPeak, LargeTensor, Peak, Timeline
from memfit.core.trace import CATEGORIES, Kind, Op, Trace
from memfit.core.units import KIB, MIB
from memfit.simulate.away import away_peaks
from memfit.simulate.clock import step_seconds
from memfit.simulate.cuda_notes import cuda_notes
from memfit.simulate.cuda_prediction import Replays, Setting, environment_setting, predict
from memfit.simulate.cuda_workspaces import needs_workspace, thread_of

LARGEST = 10
_POINTS = 600
# Predicted against measured on cpu: see benchmarks/results/accuracy_cpu.csv.
_CPU_MARGIN, _CPU_MARGIN_BYTES = 0.01, 256 * KIB
_CPU_PROCESS_BYTES = 160 * MIB  # what a warm Python process with torch holds besides tensors


@dataclass(frozen=True)
class Simulation:
    """What a step needs on a device, and how long it takes. `peak_event` indexes the trace's events.

    For a CUDA card `fits` says whether the card has room for it, and `notes` where it would run out, and how reserved
    memory is used at the peak. `away` is the most that is on the host and on disk at a time, by place.
    """

    peak: Peak
    at_peak: AtPeak
    largest: tuple[LargeTensor, ...]
    timeline: Timeline
    step_s: float
    peak_event: int
    first_step_peak_bytes: int | None = None
    fits: bool | None = None
    notes: tuple[str, ...] = ()
    away: Mapping[str, int] = field(default_factory=dict)


def simulate(trace: Trace, device: Device, *, hooked: bool = False, first: Trace | None = None,
             torch_version: str = "", replays: Replays | None = None) -> Simulation:
    """Replay the trace through the device's allocator; `hooked`: a Python hook sees every operator of forward.

    On a CUDA card the `first` step, where it is given, goes before, and the trace is replayed twice; settings are those of
    this process's environment. `replays` of the same steps may be given where several cards are asked for. Raises
    UsageError for a kind of device without an allocator, for settings that do not parse, and for a card that does not hold
    its own context.
    """
    if device.kind == "cuda":
        return _on_card([trace] if first is None else [first, trace], environment_setting(device, torch_version), replays)
    if device.kind != "cpu":
        raise UsageError(f"there are no predictions for {device.name} ({device.kind})", "use cpu, or a CUDA card")
    peak_bytes, event = peak_of(trace)
    alive = alive_at(trace, event)
    at_peak = _at_peak(trace, event, alive)
    return Simulation(
        peak=_cpu_peak(peak_bytes),
        at_peak=at_peak,
        largest=_largest(trace, alive),
        timeline=timeline(trace, event, peak_bytes, at_peak),
        step_s=step_seconds(trace, device, hooked=hooked),
        peak_event=event,
        away=away_peaks(trace),
    )


def _on_card(steps: Sequence[Trace], setting: Setting, replays: Replays | None) -> Simulation:
    seen = predict(steps, setting, replays)
    highest, steady = seen.highest, steps[-1]
    trace, step = seen.traces[highest], seen.steps[highest]
    alive = alive_at(trace, step.event)
    libraries = _workspaces(trace, step.event, highest) * seen.library_bytes
    at_peak = _at_peak(trace, step.event, alive, libraries)
    return Simulation(
        peak=seen.peak, at_peak=at_peak, largest=_largest(trace, alive),
        timeline=timeline(trace, step.event, step.allocated_bytes, at_peak), step_s=step_seconds(steady, setting.device),
        peak_event=step.event if trace is steady else -1, first_step_peak_bytes=seen.steps[0].allocated_bytes,
        fits=seen.fits, notes=cuda_notes(seen, setting.device), away=away_peaks(steady))


def _workspaces(trace: Trace, event: int, step: int) -> int:
    """How many workspaces of cuBLAS exist at an event of a step."""
    reached = trace.events if step else trace.events[: event + 1]
    used = (trace.ops[index] for kind, index in reached if kind == Kind.OP)
    return len({thread_of(op) for op in used if needs_workspace(op)})


def peak_of(trace: Trace) -> tuple[int, int]:
    """Highest sum of live bytes and the event at which it is reached (-1: before the step)."""
    storages, ops = trace.storages, trace.ops
    current = peak = trace.resident_bytes
    where = -1
    for position, (kind, index) in enumerate(trace.events):
        if kind == Kind.BIRTH:
            current += storages[index].nbytes
        elif kind == Kind.DEATH:
            current -= storages[index].nbytes
            continue
        held = current + ops[index].scratch_bytes if kind == Kind.OP else current
        if held > peak:
            peak, where = held, position
    return peak, where


def alive_at(trace: Trace, event: int) -> list[int]:
    """Storages alive right after the event."""
    alive = set(range(trace.resident))
    for kind, index in trace.events[: event + 1]:
        if kind == Kind.BIRTH:
            alive.add(index)
        elif kind == Kind.DEATH:
            alive.discard(index)
    return sorted(alive)


def _cpu_peak(allocated: int) -> Peak:
    margin = max(int(allocated * _CPU_MARGIN), _CPU_MARGIN_BYTES)
    low, high = max(0, allocated - margin), allocated + margin
    return Peak(allocated, low, high, allocated, low, high, allocated + _CPU_PROCESS_BYTES, low, high)


def _at_peak(trace: Trace, event: int, alive: Sequence[int], library_bytes: int = 0) -> AtPeak:
    by_category: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
    for index in alive:
        by_category[trace.storages[index].category] += trace.storages[index].nbytes
    by_category["workspace"] += library_bytes
    op = _operator_at(trace, event)
    if op is None:
        return AtPeak("before", "", "", by_category)
    kind, index = trace.events[event]
    by_category["workspace"] += op.scratch_bytes if kind == Kind.OP else 0
    return AtPeak(op.phase, op.module, op.name, by_category)


def _operator_at(trace: Trace, event: int) -> Op | None:
    """The operator that runs at the event: births come just before the operator that made them."""
    if event < 0:
        return None
    for kind, index in trace.events[event:]:
        if kind == Kind.OP:
            return trace.ops[index]
    return None


def _largest(trace: Trace, alive: Sequence[int]) -> tuple[LargeTensor, ...]:
    ranked = sorted(alive, key=lambda index: (-trace.storages[index].nbytes, index))[:LARGEST]
    found = (trace.storages[index] for index in ranked)
    return tuple(LargeTensor(s.nbytes, s.shape, s.dtype, s.module, s.op, s.category) for s in found)


def timeline(trace: Trace, peak_event: int, peak_bytes: int, at_peak: AtPeak) -> Timeline:
    """Bytes by category over the step, thinned to at most about 600 points, the peak among them."""
    totals: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
    for storage in trace.storages[: trace.resident]:
        totals[storage.category] += storage.nbytes
    every = max(1, len(trace.events) // _POINTS)
    xs: list[int] = [0]
    rows: list[tuple[int, ...]] = [tuple(totals.values())]
    for position, (kind, index) in enumerate(trace.events):
        if kind != Kind.OP:
            sign = 1 if kind == Kind.BIRTH else -1
            totals[trace.storages[index].category] += sign * trace.storages[index].nbytes
        if position % every == 0 or position == peak_event:
            xs.append(position + 1)
            scratch = trace.ops[index].scratch_bytes if kind == Kind.OP and position == peak_event else 0
            rows.append((*tuple(totals.values())[:-1], totals["workspace"] + scratch))
    columns = {name: tuple(row[place] for row in rows) for place, name in enumerate(totals)}
    return Timeline(tuple(xs), columns, trace.phases, max(0, peak_event + 1), peak_bytes, at_peak)
