"""A predicted timeline as files: an allocator snapshot for PyTorch's viewer, a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from memfit.core.device import Device
from memfit.core.trace import Kind, Op, Storage, Trace
from memfit.simulate.clock import op_seconds
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_prediction import STEADY_STEPS, Setting
from memfit.simulate.cuda_settings import AllocatorSettings
from memfit.simulate.cuda_steps import StepReplay
from memfit.simulate.cuda_workspaces import workspace_bytes
from memfit.simulate.perfetto import (
    Sample,
    Slice,
    allocator_samples,
    category_samples,
    chrome_trace,
    phase_slices,
    write_chrome_trace,
)
from memfit.simulate.snapshot_writer import Origin, storage_origin, write_snapshot

_MICROSECONDS = 1e6


class PredictedTimeline:
    """The steps replayed once more on a card without an end, with everything that the allocator did.

    `steps` are the traces, in order; the last one is replayed twice. Raises UsageError for settings that do not parse.
    """

    def __init__(self, steps: Sequence[Trace], setting: Setting) -> None:
        self.device = setting.device
        settings = AllocatorSettings.from_environment(setting.environment)
        self.allocator = CachingAllocator(settings, record=True, total_bytes=setting.device.capacity_bytes)
        self._log = self.allocator.log or []
        self.allocator.log = self._log
        self._replay = StepReplay(self.allocator, workspace_bytes(setting.device, setting.environment))
        self._steps = [(trace, times) for trace, times in _timed([*steps, *[steps[-1]] * (STEADY_STEPS - 1)], self.device)]
        for trace, times in self._steps:
            self._replay.run(trace, times)

    def write_snapshot(self, path: Path) -> None:
        """What `torch.cuda.memory._dump_snapshot` would write. Raises UsageError if the file cannot be written."""
        write_snapshot(path, self.allocator, _origin)

    def write_chrome_trace(self, path: Path) -> None:
        """Memory by category, the allocator's own figures, phases and operators. Raises UsageError as above."""
        counters = {"memory by category": self._by_category(), "allocator": allocator_samples(self._log)}
        phases = [one for trace, times in self._steps for one in phase_slices(trace, times)]
        write_chrome_trace(path, chrome_trace(counters, phases, self._operators(), f"memfit on {self.device.name}"))

    def _by_category(self) -> Iterator[Sample]:
        for trace, times in self._steps:
            samples = category_samples(trace, times)
            _, before = next(samples)
            yield times[0] if times else 0.0, before
            yield from samples

    def _operators(self) -> Iterator[Slice]:
        for trace, times in self._steps:
            for (kind, index), time_us in zip(trace.events, times, strict=True):
                if kind == Kind.OP:
                    length = op_seconds(trace.ops[index], self.device) * _MICROSECONDS
                    yield trace.ops[index].name, time_us - length, length


def _timed(steps: Sequence[Trace], device: Device) -> Iterator[tuple[Trace, list[float]]]:
    """Each step with the time of each of its events, in microseconds since the first step began."""
    now_us = 0.0
    for trace in steps:
        times: list[float] = []
        for kind, index in trace.events:
            if kind == Kind.OP:
                now_us += op_seconds(trace.ops[index], device) * _MICROSECONDS
            times.append(now_us)
        yield trace, times


def _origin(tag: object) -> Origin:
    if isinstance(tag, Storage):
        return storage_origin(tag)
    if isinstance(tag, Op):
        frames = ((f"{tag.name} [workspace]", tag.module or "(no module)", 0), (tag.phase, "step", 0))
        return Origin(frames, "workspace")
    return Origin()
