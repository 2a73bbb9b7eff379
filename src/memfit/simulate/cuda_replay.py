"""Replaying a recorded trace: from the state before its first event, through the simulated allocator, and compared."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.core.errors import UsageError
from memfit.simulate import cuda_release
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_blocks import Block, Ties
from memfit.simulate.cuda_expandable import unmap
from memfit.simulate.cuda_log import LogEntry
from memfit.simulate.cuda_settings import AllocatorSettings
from memfit.simulate.cuda_start import adopt, contradiction, recorded_events, starting_state
from memfit.simulate.snapshots import Snapshot, SnapshotEvent

_GROWTH = ("segment_alloc", "segment_map")


@dataclass(frozen=True, slots=True)
class Replay:
    """How far prediction and record agree; the replay stops at the first difference ("" if there is none).

    `placed` of `allocations` got the recorded address; `sized` of `segments` (or mapped ranges) the recorded address
    and size, under the rule `allocator.ties`. `allocator` is left in the state after the last event; its peaks are
    those of the trace.
    """

    allocations: int
    placed: int
    segments: int
    sized: int
    difference: str
    allocator: CachingAllocator


def replay(snapshot: Snapshot, device: int = 0, settings: AllocatorSettings | None = None,
           ties: Ties | None = None) -> Replay:
    """Run the recorded requests of a device through the simulated allocator and compare every placement.

    `settings` default to the recorded ones. Without `ties`, the rules of all versions are tried and the result of the
    one that agrees longest is given, as a snapshot does not say which version wrote it. Memory that the driver took
    back in the record is given back at the same moment. Raises UsageError where the trace starts amid expandable
    segments (where their address space begins is not in a snapshot) and where it contradicts its segments.
    """
    if any(segment.expandable for segment in snapshot.segments) and _starts_amid(snapshot, device):
        raise UsageError("the trace starts after expandable segments were made, so it cannot be replayed",
                         "record from the start of the process")
    settings = settings or snapshot.recorded_settings()
    best: Replay | None = None
    for rule in [ties] if ties else Ties:
        result = _Replayer(snapshot, device, settings, rule).run()
        if best is None or result.placed > best.placed:
            best = result
        if not result.difference:
            break
    assert best is not None
    return best


class _Replayer:
    def __init__(self, snapshot: Snapshot, device: int, settings: AllocatorSettings, ties: Ties) -> None:
        self.events = recorded_events(snapshot, device)
        self.allocator = CachingAllocator(settings, record=True, place=self._place, ties=ties)
        self.log: list[LogEntry] = self.allocator.log or []
        self.allocator.log = self.log
        self.at: dict[int, Block] = {}
        self.growth: list[SnapshotEvent] = []  # recorded since the last allocation
        self.placed = self.sized = 0
        for segment in starting_state(snapshot, device, settings):
            for block in adopt(self.allocator, segment):
                self.at[block.address] = block
        self.allocator.reset_peaks()

    def run(self) -> Replay:
        difference = ""
        for index, event in enumerate(self.events):
            difference = self._step(index, event)
            if difference:
                break
        actions = [event.action for event in self.events]
        return Replay(actions.count("alloc"), self.placed, sum(map(actions.count, _GROWTH)), self.sized, difference,
                      self.allocator)

    def _step(self, index: int, event: SnapshotEvent) -> str:
        if event.action in _GROWTH:
            self.growth.append(event)
        elif event.action == "alloc":
            return self._allocate(index, event)
        elif event.action == "free_requested":
            self._free(index, event)
        elif event.action == "free_completed" and event.address in self.at:
            self.allocator.synchronize()
            self.at.pop(event.address)
        elif event.action in ("segment_free", "segment_unmap"):
            return self._shrink(index, event)
        return ""

    def _allocate(self, index: int, event: SnapshotEvent) -> str:
        self.log.clear()
        block = self.allocator.malloc(event.size, event.stream)
        predicted = [entry for entry in self.log if entry.action in _GROWTH]
        if [_key(entry) for entry in predicted] != [_key(entry) for entry in self.growth]:
            return f"event {index}: predicted {_shown(predicted)}, recorded {_shown(self.growth)}"
        self.sized += len(self.growth)
        self.growth.clear()
        if block.address != event.address:
            return f"event {index}: {event.size} B predicted at {block.address:#x}, recorded at {event.address:#x}"
        self.placed += 1
        self.at[block.address] = block
        return ""

    def _free(self, index: int, event: SnapshotEvent) -> None:
        block = self.at.get(event.address)
        if block is None:
            raise contradiction(f"a free at {event.address:#x}, where nothing is allocated")
        following = self.events[index + 1] if index + 1 < len(self.events) else None
        if following is None or following.action != "free_completed" or following.address != event.address:
            self.allocator.record_stream(block, -1 - event.address)  # waits for a stream of its own
        else:
            self.at.pop(event.address)
        self.allocator.free(block)

    def _shrink(self, index: int, event: SnapshotEvent) -> str:
        if event.action == "segment_unmap":
            return self._unmap(index, event)
        block = self.allocator.segments.get(event.address)
        if block is None or not block.free or not block.whole or block.size != event.size:
            return f"event {index}: segment {event.address:#x} was freed, which is in use in the prediction"
        cuda_release.release_segment(self.allocator, block)
        return ""

    def _unmap(self, index: int, event: SnapshotEvent) -> str:
        block = next((block for block in self.allocator.blocks()
                      if block.free and block.address <= event.address < block.address + block.size), None)
        self.log.clear()
        if block is not None and block.range is not None:
            unmap(self.allocator, block)
        if [_key(entry) for entry in self.log] != [_key(event)]:
            return f"event {index}: predicted {_shown(self.log)}, recorded {_shown([event])}"
        return ""

    def _place(self, size: int, stream: int) -> int:
        """The recorded address; anything where the record has no new segment, which then shows as a difference."""
        return next((event.address for event in self.growth if event.address not in self.allocator.segments), 0)


def _starts_amid(snapshot: Snapshot, device: int) -> bool:
    signs = {"segment_map": 1, "segment_unmap": -1}
    mapped = sum(signs.get(event.action, 0) * event.size for event in recorded_events(snapshot, device))
    return mapped != sum(s.size for s in snapshot.segments if s.expandable and s.device == device)


def _key(entry: LogEntry | SnapshotEvent) -> tuple[str, int, int]:
    return entry.action, entry.address, entry.size


def _shown(entries: list[LogEntry] | list[SnapshotEvent]) -> str:
    return ", ".join(f"{entry.action} of {entry.size} B at {entry.address:#x}" for entry in entries) or "no new segment"
