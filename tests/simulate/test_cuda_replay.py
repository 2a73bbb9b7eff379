"""Public traces from real cards, replayed: every address, every segment, the end state and the peaks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from memfit.core.units import MIB
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_replay import Replay, replay
from memfit.simulate.cuda_settings import AllocatorSettings
from memfit.simulate.cuda_start import adopt, starting_state
from memfit.simulate.snapshots import ALLOCATED, INACTIVE, PENDING, Snapshot, load_snapshot

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared" / "data" / "snapshots"
# Peak allocated and reserved in MiB as published with the traces (measured_cuda.csv), and allocations in the trace.
PUBLISHED = {
    "P001": (6701.094, 6900, 6526),
    "P002": (1658.371, 1682, 1280),
    "P009": (3098.626, 3606, 36),
    "P010": (534.953, 582, 681),
    "P012": (18595.143, 18756, 2058),
    "P022": (4039.926, 4234, 12),
    "conv": (105.010, 128, 1935),
}


def find(name: str) -> Snapshot:
    for folder in (SHIPPED, SHARED):
        if (folder / f"{name}.pickle").exists():
            return load_snapshot(folder / f"{name}.pickle")
    pytest.skip(f"the trace {name} is not here: {SHARED} does not exist")


def test_the_shipped_traces_are_there() -> None:
    assert {path.stem for path in SHIPPED.glob("*.pickle")} == {"P009", "P022"}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_every_placement(name: str) -> None:
    snapshot = find(name)
    result = replay(snapshot)
    assert result.difference == ""
    assert result.placed == result.allocations == PUBLISHED[name][2]
    assert result.sized == result.segments == sum(e.action == "segment_alloc" for e in snapshot.traces[0])
    _same_end_state(snapshot, result)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_peaks_are_the_published_ones(name: str) -> None:
    result = replay(find(name))
    stats, at_peak = result.allocator.stats, result.allocator.fragmentation_at_peak()
    allocated, reserved, _ = PUBLISHED[name]
    assert stats.peak_allocated_bytes / MIB == pytest.approx(allocated, abs=0.0005)
    assert stats.peak_reserved_bytes == reserved * MIB
    assert at_peak.allocated_bytes == stats.peak_allocated_bytes
    assert at_peak.inactive_split_bytes <= at_peak.idle_bytes
    assert at_peak.largest_free_bytes <= at_peak.idle_bytes


def test_a_wrong_rule_is_seen() -> None:
    snapshot = find("P009")
    result = replay(snapshot, settings=AllocatorSettings(large_segment_bytes=64 * MIB))
    assert result.difference.startswith("event 1: predicted segment_alloc of 67108864 B")
    assert result.placed == 0
    other = replay(snapshot, settings=AllocatorSettings(max_split_bytes=256 * MIB))
    assert other.difference and other.placed < other.allocations


def test_speed_on_a_training_step() -> None:
    """12,831 events; about 13 ms on a quiet core. The bound is wide for busy machines."""
    snapshot = find("P001")
    events = [e for e in snapshot.traces[0] if e.action in ("alloc", "free_requested")]
    allocator = CachingAllocator()
    at = {block.address: block for segment in starting_state(snapshot, 0, allocator.settings)
          for block in adopt(allocator, segment)}
    start = time.perf_counter()
    for event in events:
        if event.action == "alloc":
            at[event.address] = allocator.malloc(event.size)
        else:
            allocator.free(at.pop(event.address))
    assert time.perf_counter() - start < 0.3


def _same_end_state(snapshot: Snapshot, result: Replay) -> None:
    """Block by block, as the real allocator held them when the snapshot was taken."""
    recorded = {(block.address, block.size, block.state) for segment in snapshot.segments for block in segment.blocks}
    predicted = {(block.address, block.size, INACTIVE if block.free else ALLOCATED if block.allocated else PENDING)
                 for block in result.allocator.blocks()}
    assert predicted == recorded
    stats = result.allocator.stats
    assert stats.reserved_bytes == sum(segment.size for segment in snapshot.segments)
    assert stats.requested_bytes == sum(block.requested for segment in snapshot.segments for block in segment.blocks
                                        if block.state != INACTIVE)
    assert stats.inactive_split_bytes == sum(block.size for segment in snapshot.segments if len(segment.blocks) > 1
                                             for block in segment.blocks if block.state == INACTIVE)
