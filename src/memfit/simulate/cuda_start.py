"""The state of an allocator before the first event of a recorded trace, found by undoing the trace from its end."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.core.errors import UsageError
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_blocks import Block
from memfit.simulate.cuda_settings import SMALL_LIMIT, SMALL_SEGMENT, AllocatorSettings
from memfit.simulate.snapshots import INACTIVE, Snapshot, SnapshotEvent


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block in use before the trace starts."""

    address: int
    size: int
    requested: int


@dataclass(frozen=True, slots=True)
class StartSegment:
    """A segment that exists before the trace starts."""

    address: int
    size: int
    stream: int
    small: bool
    live: tuple[LiveBlock, ...]


def starting_state(snapshot: Snapshot, device: int, settings: AllocatorSettings) -> list[StartSegment]:
    """Undo the trace from its end. Raises UsageError where the trace and the segments contradict each other."""
    segments = {segment.address: (segment.size, segment.stream, segment.small)
                for segment in snapshot.segments if segment.device == device and not segment.expandable}
    live: dict[int, tuple[int | None, int]] = {
        block.address: (block.size, block.requested) for segment in snapshot.segments if segment.device == device
        for block in segment.blocks if block.state != INACTIVE}
    for event in reversed(recorded_events(snapshot, device)):
        if event.action == "alloc":
            if live.pop(event.address, None) is None:
                raise contradiction(f"an allocation at {event.address:#x} that is not there")
        elif event.action == "free_completed":
            live[event.address] = (None, event.size)
        elif event.action == "segment_alloc":
            segments.pop(event.address, None)
        elif event.action == "segment_free":
            segments[event.address] = (event.size, event.stream, event.size == SMALL_SEGMENT)
    return _with_blocks(segments, live, settings)


def adopt(allocator: CachingAllocator, segment: StartSegment) -> list[Block]:
    """Give the allocator a segment that exists already; its live blocks, in order of address."""
    block = allocator.add_segment(allocator.pool(segment.stream, segment.small), segment.address, segment.size)
    adopted: list[Block] = []
    for live in segment.live:
        if live.address > block.address:
            gap, block = block, block.cut(live.address - block.address)
            gap.owner.insert(gap)
        rest = block.cut(live.size) if live.size < block.size else None
        allocator.count_allocated(block, live.requested)
        adopted.append(block)
        if rest is None:
            break
        block = rest
    if not block.allocated:
        block.owner.insert(block)
    if adopted:
        allocator.stats.inactive_split_bytes += segment.size - sum(live.size for live in segment.live)
    return adopted


def recorded_events(snapshot: Snapshot, device: int) -> tuple[SnapshotEvent, ...]:
    """The events of a device, oldest first."""
    return snapshot.traces[device] if device < len(snapshot.traces) else ()


def contradiction(what: str) -> UsageError:
    """The error for a trace that cannot have led to its segments."""
    return UsageError(f"the trace contradicts its segments: {what}",
                      "record the trace again; snapshot and trace must come from one moment")


def _with_blocks(segments: dict[int, tuple[int, int, bool]], live: dict[int, tuple[int | None, int]],
                 settings: AllocatorSettings) -> list[StartSegment]:
    addresses, found = sorted(live), list[StartSegment]()
    position = 0
    for start in sorted(segments):
        size, stream, small = segments[start]
        first = position
        while position < len(addresses) and addresses[position] < start + size:
            position += 1
        inside = addresses[first:position]
        blocks = tuple(_block(address, live[address], follower, settings)
                       for address, follower in zip(inside, [*inside[1:], start + size], strict=False))
        found.append(StartSegment(start, size, stream, small, blocks))
    if position != len(addresses):
        raise contradiction(f"a block at {addresses[position]:#x} that is in no segment")
    return found


def _block(address: int, known: tuple[int | None, int], follower: int, settings: AllocatorSettings) -> LiveBlock:
    """A block's size: recorded, else rounded from the request. A gap too small to split off belongs to it."""
    size, requested = known
    room = follower - address
    if size is None:
        size = settings.rounded(requested)
        if size > SMALL_LIMIT and room - size <= SMALL_LIMIT:
            size = max(room, size)
    if size > room:
        raise contradiction(f"a block at {address:#x} that does not fit before {follower:#x}")
    return LiveBlock(address, size, requested)
