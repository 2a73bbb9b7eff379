"""What a job's steps need on a CUDA card: the allocator's peaks, the process's, and whether it would run out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.results import Peak
from memfit.core.trace import Trace
from memfit.core.units import MIB
from memfit.hardware.process_memory import Span, overhead_range
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_settings import AllocatorSettings
from memfit.simulate.cuda_stats import OutOfMemory
from memfit.simulate.cuda_steps import HIGH, LOW, TYPICAL, RanOut, StepPeak, StepReplay
from memfit.simulate.cuda_workspaces import workspace_bytes

STEADY_STEPS = 2
_MARGIN, _MARGIN_BYTES = 0.015, 2 * MIB


@dataclass(frozen=True)
class CudaPrediction:
    """`steps` are the peaks of each replayed step, the first one's trace being `traces[0]`. `ran_out` is where memory is
    not enough on the card (the peaks are then those of a card without an end); `fits`, whether it is enough also at the
    upper end."""

    peak: Peak
    traces: tuple[Trace, ...]
    steps: tuple[StepPeak, ...]
    ran_out: RanOut | None
    fits: bool
    library_bytes: int
    settings: AllocatorSettings

    @property
    def highest(self) -> int:
        """Which of the steps has the highest peak; the later one where several do."""
        return max(range(len(self.steps)), key=lambda place: (self.steps[place].allocated_bytes, place))


@dataclass(frozen=True)
class Setting:
    """Where steps are replayed: card, environment variables, the version of torch whose libraries are loaded."""

    device: Device
    environment: Mapping[str, str]
    torch_version: str = ""


def predict(steps: Sequence[Trace], setting: Setting, replays: Replays | None = None) -> CudaPrediction:
    """Replay traces in order, the last one once more. `replays` of the same steps may be given, which several cards share.

    Raises UsageError for settings that do not parse, and for a card that does not even hold the context.
    """
    device = setting.device
    settings = AllocatorSettings.from_environment(setting.environment)
    replays = replays or Replays(steps)
    overhead = overhead_range(device, setting.torch_version, convolutions=replays.uses_cudnn)
    room = _room(device, overhead)
    card = _Card(device.capacity_bytes, settings, workspace_bytes(device, setting.environment))
    endless, _ = replays.run(card, None, TYPICAL)
    seen, ran_out = replays.run(card, room.typical_bytes, TYPICAL)
    least, most = (replays.run(card, None, end)[0] for end in (LOW, HIGH))
    _, tight = replays.run(card, max(0, device.capacity_bytes - _beyond(_reserved(endless), overhead)), LOW)
    shown = endless if ran_out is not None else seen
    peak = _peak(shown, least, most, overhead, None if tight is not None else device.capacity_bytes)
    return CudaPrediction(peak, replays.traces, tuple(shown), ran_out, tight is None, card.library_bytes, settings)


def environment_setting(device: Device, torch_version: str = "") -> Setting:
    """The setting of this process."""
    return Setting(device, os.environ, torch_version)


class _Card(NamedTuple):
    """What the allocator's work depends on."""

    total_bytes: int
    settings: AllocatorSettings
    library_bytes: int


Outcome = tuple[list[StepPeak], "RanOut | None"]


class Replays:
    """A job's steps through the allocator, each way once: on a card without an end the outcome is that of every card that
    is large enough for it."""

    def __init__(self, steps: Sequence[Trace]) -> None:
        self.traces = (*steps, *[steps[-1]] * (STEADY_STEPS - 1))
        ops = [op for trace in steps for op in trace.ops]
        self.uses_cudnn = any("conv" in op.name or "cudnn" in op.name for op in ops)
        self._elastic = any(op.workspace is not None for op in ops)
        self._known: dict[tuple[AllocatorSettings, int, int], list[StepPeak]] = {}

    def run(self, card: _Card, capacity_bytes: int | None, end: int) -> Outcome:
        """Peaks of the steps to the end, or until memory runs out; `end` is that of elastic workspaces."""
        end = end if self._elastic else TYPICAL
        key = (card.settings, card.library_bytes, end)
        if key not in self._known:
            endless = replace(card.settings, memory_fraction=None)
            self._known[key], _ = self._replay(card._replace(settings=endless), None, end)
        peaks = self._known[key]
        if capacity_bytes is None:
            return peaks, None
        limit = min(capacity_bytes, card.settings.fraction_bytes(card.total_bytes))
        roomy = max(step.reserved_bytes for step in peaks) <= limit and not card.settings.garbage_collection_threshold
        return (peaks, None) if roomy else self._replay(card, capacity_bytes, end)

    def _replay(self, card: _Card, capacity_bytes: int | None, end: int) -> Outcome:
        allocator = CachingAllocator(card.settings, capacity_bytes, total_bytes=card.total_bytes)
        replay = StepReplay(allocator, card.library_bytes, end)
        peaks: list[StepPeak] = []
        for place, trace in enumerate(self.traces):
            try:
                peaks.append(replay.run(trace))
            except OutOfMemory as error:
                return peaks, RanOut(place, replay.event, error)
        return peaks, None


def _room(device: Device, overhead: Span) -> Span:
    """What is left for the allocator, by how much the libraries take."""
    room = Span(*(device.capacity_bytes - taken for taken in reversed(overhead)))
    if room.low_bytes <= 0:
        raise UsageError(
            f"{device.name} holds {device.capacity_bytes / MIB:.0f} MiB, and the CUDA context with its libraries takes up to "
            f"{overhead.high_bytes / MIB:.0f} MiB of it", "choose a card with more memory")
    return room


def _highest(steps: Sequence[StepPeak]) -> int:
    return max((step.allocated_bytes for step in steps), default=0)


def _reserved(steps: Sequence[StepPeak]) -> int:
    return max((step.reserved_bytes for step in steps), default=0)


def _peak(seen: Sequence[StepPeak], least: Sequence[StepPeak], most: Sequence[StepPeak], overhead: Span,
          holds_bytes: int | None) -> Peak:
    """`holds_bytes`: a card that is known to be enough, which the process therefore stays within."""
    allocated, reserved = _highest(seen), _reserved(seen)
    low, high = _below(_highest(least)), _above(max(allocated, _highest(most)))
    held_low, held_high = _below(_reserved(least)), _above(max(reserved, _reserved(most)))
    process = Span(min(held_low, reserved), reserved, held_high).beside(overhead)
    highest = process.high_bytes if holds_bytes is None else min(process.high_bytes, holds_bytes)
    return Peak(allocated, min(low, allocated), high, reserved, min(held_low, reserved), held_high,
                process.typical_bytes, process.low_bytes, highest)


def _beyond(reserved: int, overhead: Span) -> int:
    """What the process may take at most above what is reserved."""
    return Span(reserved, reserved, _above(reserved)).beside(overhead).high_bytes - reserved


def _below(size: int) -> int:
    return max(0, size - int(size * _MARGIN) - _MARGIN_BYTES)


def _above(size: int) -> int:
    return size + int(size * _MARGIN) + _MARGIN_BYTES
