"""Traced steps, one after the other, through the caching allocator: what is kept from one to the next stays in place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from memfit.core.trace import Kind, Op, Storage, Trace
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_blocks import Block
from memfit.simulate.cuda_stats import Fragmentation, OutOfMemory
from memfit.simulate.cuda_workspaces import needs_workspace, thread_of

LOW, TYPICAL, HIGH = 0, 1, 2  # which end of a library's workspace is taken
_PASSES = 3  # of a window's equal micro-batches; more of them find the same free blocks


@dataclass(frozen=True)
class StepPeak:
    """What one step reached. `event` indexes the trace's events (-1: before the first)."""

    allocated_bytes: int
    reserved_bytes: int
    event: int
    fragmentation: Fragmentation


@dataclass(frozen=True)
class RanOut:
    """Where a step asked for what the device does not have."""

    step: int
    event: int
    error: OutOfMemory


class StepReplay:
    """Replays steps of one job. `workspace_bytes` is what cuBLAS takes for each thread; `ends` which end of other
    libraries' workspaces (LOW, TYPICAL, HIGH) is tried first: one that does not get it takes less."""

    def __init__(self, allocator: CachingAllocator, workspace_bytes: int, end: int = TYPICAL) -> None:
        self.allocator = allocator
        self.steps = 0
        self.workspaces: dict[str, Block] = {}
        self._workspace_bytes = workspace_bytes
        self._end = end
        self._kept: dict[int, tuple[Block, Storage]] = {}  # by key
        self._blocks: list[Block | None] = []
        self._event = -1
        self._peak = 0

    @property
    def event(self) -> int:
        """The event that was replayed last."""
        return self._event

    def run(self, trace: Trace, times_us: Sequence[float] | None = None) -> StepPeak:
        """One step; `times_us` are the times of its events, for the allocator's log. Raises OutOfMemory; `event` then says
        where."""
        stats = self.allocator.stats
        self._event = -1
        self._blocks = [None] * len(trace.storages)
        self._adopt(trace)
        self.allocator.reset_peaks()
        self._peak = stats.peak_allocated_bytes
        peak_event = -1
        for position in _order(trace):
            self._event = position
            if times_us is not None:
                self.allocator.now_us = int(times_us[position])
            self._play(trace, position)
            if stats.peak_allocated_bytes > self._peak:
                self._peak, peak_event = stats.peak_allocated_bytes, position
        self._keep(trace)
        self.steps += 1
        return StepPeak(stats.peak_allocated_bytes, stats.peak_reserved_bytes, peak_event,
                        self.allocator.fragmentation_at_peak())

    def _play(self, trace: Trace, position: int) -> None:
        kind, index = trace.events[position]
        if kind == Kind.BIRTH:
            former = self._blocks[index]
            self._blocks[index] = self._malloc(trace.storages[index])
            if former is not None:  # of the pass before
                self.allocator.free(former)
        elif kind == Kind.DEATH:
            block, self._blocks[index] = self._blocks[index], None
            if block is not None:
                self.allocator.free(block)
        else:
            self._operate(trace.ops[index])

    def _malloc(self, storage: Storage) -> Block:
        return self.allocator.malloc(storage.nbytes, tag=storage)

    def _operate(self, op: Op) -> None:
        taken = self._scratch(op) if op.scratch_bytes or op.workspace is not None else []
        if needs_workspace(op) and thread_of(op) not in self.workspaces:
            self.workspaces[thread_of(op)] = self.allocator.malloc(self._workspace_bytes, tag=op)
        for block in reversed(taken):
            self.allocator.free(block)

    def _scratch(self, op: Op) -> list[Block]:
        if op.workspace is not None:
            return [self._elastic(op, op.workspace)]
        return [self.allocator.malloc(size, tag=op) for size in op.buffers or (op.scratch_bytes,)]

    def _elastic(self, op: Op, sizes: tuple[int, int, int]) -> Block:
        """As much of a workspace as there is room for: a library that does not get it tries a way that needs less."""
        for end in range(self._end, LOW, -1):
            try:
                return self.allocator.malloc(sizes[end], tag=op)
            except OutOfMemory:
                continue
        return self.allocator.malloc(sizes[LOW], tag=op)

    def _adopt(self, trace: Trace) -> None:
        """Blocks for what is there before the step: those kept of the step before, else new ones."""
        missing: list[int] = []
        for index in range(trace.resident):
            key = trace.keys.get(index, -1)
            kept = self._kept.get(key)
            if kept is None or kept[1].nbytes != trace.storages[index].nbytes:  # keys are used again after a death
                missing.append(index)
            else:
                self._blocks[index] = kept[0]
                del self._kept[key]
        alike: dict[tuple[int, str], list[Block]] = defaultdict(list)
        for block, storage in reversed(self._kept.values()):
            alike[storage.nbytes, storage.dtype].append(block)
        unmatched: list[int] = []
        for index in missing:  # a state that each step replaces: the last step's new one is this step's old one
            found = alike[trace.storages[index].nbytes, trace.storages[index].dtype]
            if found:
                self._blocks[index] = found.pop()
            else:
                unmatched.append(index)
        for block in [block for blocks in alike.values() for block in blocks]:
            self.allocator.free(block)
        for index in unmatched:
            self._blocks[index] = self._malloc(trace.storages[index])

    def _keep(self, trace: Trace) -> None:
        self._kept = {trace.keys.get(index, -1 - index): (block, trace.storages[index])
                      for index, block in enumerate(self._blocks) if block is not None}


def _order(trace: Trace) -> list[int]:
    """Positions of the events to play: a repeated part several times."""
    if not trace.repeats:
        return list(range(len(trace.events)))
    order: list[int] = []
    at = 0
    for repeat in sorted(trace.repeats, key=lambda one: one.start):
        order += range(at, repeat.start)
        order += list(range(repeat.start, repeat.stop)) * min(repeat.count, _PASSES)
        at = repeat.stop
    return [*order, *range(at, len(trace.events))]
