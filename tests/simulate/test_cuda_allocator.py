"""The allocator's rules one by one, and what must hold whatever is asked of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from memfit.core.units import GIB, KIB, MIB
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_blocks import Block, Ties
from memfit.simulate.cuda_settings import AllocatorSettings
from memfit.simulate.cuda_stats import OutOfMemory


def actions(allocator: CachingAllocator) -> list[str]:
    return [entry.action for entry in allocator.log or ()]


def test_a_request_takes_the_front_and_the_rest_is_free() -> None:
    allocator = CachingAllocator()
    block = allocator.malloc(int(12.1 * MIB))
    assert allocator.stats.reserved_bytes == 14 * MIB
    assert block.address in allocator.segments and block.size < 13 * MIB
    assert allocator.stats.inactive_split_bytes == 14 * MIB - block.size


def test_a_small_remainder_of_a_large_block_stays_with_it() -> None:
    allocator = CachingAllocator()
    assert allocator.malloc(int(13.5 * MIB)).size == 14 * MIB
    assert allocator.stats.allocated_bytes == 14 * MIB
    assert allocator.stats.inactive_split_bytes == 0
    assert allocator.fragmentation().rounding_bytes == MIB // 2


def test_pools_do_not_mix_and_streams_do_not_either() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(2 * MIB))
    allocator.malloc(MIB)
    assert allocator.stats.reserved_bytes == 22 * MIB
    allocator.malloc(2 * MIB, stream=3)
    assert allocator.stats.reserved_bytes == 42 * MIB


@pytest.mark.parametrize(("version", "first"), [("2.11.0", 3), ("2.12.1", 1), ("2.14.1+cu130", 1), ("nightly", 1)])
def test_best_fit_then_the_version_decides(version: str, first: int) -> None:
    allocator = CachingAllocator(ties=Ties.of_version(version))
    blocks = [allocator.malloc(size) for size in (100 * MIB, 60 * MIB, 80 * MIB, 60 * MIB)]
    for block in blocks:
        allocator.free(block)
    assert blocks[3].address < blocks[1].address  # later segments lie lower
    assert allocator.malloc(50 * MIB).address == blocks[first].address
    assert allocator.malloc(70 * MIB).address == blocks[2].address


@pytest.mark.parametrize(("ties", "place"), [
    (Ties.OLDEST_BLOCK, 3), (Ties.OLDEST_SEGMENT, 0), (Ties.LOWEST_ADDRESS, 0)])
def test_which_of_two_holes_in_a_segment(ties: Ties, place: int) -> None:
    """The hole at 0 was merged and split again, so it is younger than the one at 3."""
    allocator = CachingAllocator(ties=ties)
    row = [allocator.malloc(512) for _ in range(6)]
    start = row[0].address
    allocator.free(row[0])
    allocator.free(row[1])
    again = allocator.malloc(512)
    allocator.malloc(512)
    allocator.free(again)
    allocator.free(row[3])
    assert (allocator.malloc(512).address - start) // 512 == place


def test_nothing_is_asked_for_nothing() -> None:
    allocator = CachingAllocator(record=True)
    allocator.free(allocator.malloc(0))
    assert allocator.stats.reserved_bytes == 0 and allocator.log == []


def test_a_block_is_freed_once() -> None:
    allocator = CachingAllocator()
    block = allocator.malloc(5)
    allocator.free(block)
    with pytest.raises(ValueError, match="is not allocated"):
        allocator.free(block)


def test_another_stream_keeps_a_freed_block_active() -> None:
    allocator = CachingAllocator(record=True)
    block = allocator.malloc(30 * MIB)
    allocator.record_stream(block, 7)
    allocator.free(block)
    assert (allocator.stats.allocated_bytes, allocator.stats.active_bytes) == (0, 30 * MIB)
    assert allocator.malloc(30 * MIB) is not block
    allocator.complete(7)
    assert allocator.malloc(30 * MIB).address == block.address
    assert actions(allocator) == ["segment_alloc", "alloc", "free_requested", "segment_alloc", "alloc",
                                  "free_completed", "alloc"]


def test_a_block_waits_for_every_stream() -> None:
    allocator = CachingAllocator()
    block = allocator.malloc(30 * MIB)
    for stream in (0, 1, 2):  # its own stream does not count
        allocator.record_stream(block, stream)
    allocator.free(block)
    allocator.complete(1)
    assert allocator.malloc(30 * MIB) is not block
    allocator.complete(2)
    assert allocator.malloc(30 * MIB).address == block.address


def test_a_full_device_gives_back_whole_segments_first() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB, record=True)
    first, second = allocator.malloc(40 * MIB), allocator.malloc(40 * MIB)
    allocator.free(first)
    allocator.malloc(60 * MIB)
    assert allocator.stats.num_alloc_retries == 1
    assert allocator.stats.reserved_bytes == 100 * MIB
    assert "segment_free" in actions(allocator)
    allocator.free(second)


def test_a_segment_in_use_cannot_be_given_back() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB, record=True)
    large = allocator.malloc(60 * MIB)
    allocator.free(large)
    keep = allocator.malloc(2 * MIB)  # splits the cached 60 MiB
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(70 * MIB, tag="weights")
    error = caught.value
    assert (error.segment_bytes, error.reserved_bytes, error.limit_bytes) == (70 * MIB, 60 * MIB, 100 * MIB)
    assert (error.short_bytes, error.largest_free_bytes, error.tag) == (30 * MIB, 58 * MIB, "weights")
    assert actions(allocator)[-1] == "oom" and allocator.stats.num_ooms == 1
    allocator.free(keep)
    assert allocator.malloc(70 * MIB).size == 70 * MIB


def test_waiting_blocks_come_back_on_a_full_device() -> None:
    allocator = CachingAllocator(capacity_bytes=100 * MIB)
    block = allocator.malloc(80 * MIB)
    allocator.record_stream(block, 1)
    allocator.free(block)
    assert allocator.malloc(90 * MIB).size == 90 * MIB


def test_a_memory_fraction_is_of_the_whole_card() -> None:
    settings = AllocatorSettings(memory_fraction=0.5)
    allocator = CachingAllocator(settings, capacity_bytes=9 * GIB, total_bytes=10 * GIB)
    allocator.malloc(5 * GIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(1)
    assert caught.value.limit_bytes == 5 * GIB


def test_blocks_above_max_split_size_are_not_split() -> None:
    allocator = CachingAllocator(AllocatorSettings.parse("max_split_size_mb:100"), record=True)
    allocator.free(allocator.malloc(200 * MIB))
    small = allocator.malloc(50 * MIB)  # below the limit: may not use the block above it
    assert allocator.stats.reserved_bytes == 250 * MIB
    assert allocator.malloc(150 * MIB).size == 150 * MIB  # too much would be lost
    assert allocator.malloc(190 * MIB).size == 200 * MIB  # less than 20 MiB too large: as it is
    allocator.free(small)


def test_oversize_blocks_go_first_when_memory_is_short() -> None:
    allocator = CachingAllocator(AllocatorSettings.parse("max_split_size_mb:100"), 500 * MIB, record=True)
    cached = [allocator.malloc(size * MIB) for size in (110, 120, 30)]
    for block in cached:
        allocator.free(block)
    allocator.malloc(300 * MIB)
    freed = [entry.size // MIB for entry in allocator.log or () if entry.action == "segment_free"]
    assert freed == [120, 110, 30]  # largest first, not enough for 300 MiB; then everything
    assert allocator.stats.num_alloc_retries == 1


def test_garbage_collection_frees_what_is_older_than_average() -> None:
    settings = AllocatorSettings(garbage_collection_threshold=0.5, memory_fraction=1.0)
    allocator = CachingAllocator(settings, 1000 * MIB, record=True)
    old, young = allocator.malloc(300 * MIB), allocator.malloc(250 * MIB)
    allocator.free(old)
    for _ in range(3):
        allocator.free(allocator.malloc(100 * MIB, stream=1))
    allocator.free(young)
    allocator.malloc(320 * MIB)
    assert [entry.size // MIB for entry in allocator.log or () if entry.action == "segment_free"] == [300]
    assert allocator.stats.num_alloc_retries == 0


def test_expandable_segments_grow_in_pages() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True), total_bytes=GIB, record=True)
    first, second = allocator.malloc(30 * MIB), allocator.malloc(30 * MIB)
    assert second.address == first.address + 30 * MIB
    assert allocator.stats.reserved_bytes == 60 * MIB  # 40, then one more page
    third = allocator.malloc(1)
    assert allocator.stats.reserved_bytes == 62 * MIB and third.owner.small
    allocator.free(first)
    assert allocator.malloc(25 * MIB).address == first.address
    assert allocator.stats.inactive_split_bytes == 0
    assert [entry.size // MIB for entry in allocator.log or () if entry.action == "segment_map"] == [40, 20, 2]


def test_expandable_segments_give_back_pages_amid_use() -> None:
    allocator = CachingAllocator(AllocatorSettings(expandable_segments=True), 100 * MIB, record=True)
    blocks = [allocator.malloc(25 * MIB) for _ in range(4)]
    for block in blocks[:3]:
        allocator.free(block)
    with pytest.raises(OutOfMemory) as caught:  # of 75 MiB free, three pages are wholly so; four are needed
        allocator.malloc(70 * MIB, stream=2)
    assert (caught.value.reserved_bytes, caught.value.short_bytes) == (40 * MIB, 20 * MIB)
    assert [(e.address - blocks[0].address, e.size) for e in allocator.log or () if e.action == "segment_unmap"] == [
        (0, 60 * MIB)]
    assert allocator.malloc(60 * MIB, stream=2).size == 60 * MIB
    assert allocator.malloc(15 * MIB).address == blocks[0].address + 60 * MIB  # what was left of the free block


def test_the_peak_knows_how_memory_was_used() -> None:
    allocator = CachingAllocator()
    hole, keep = allocator.malloc(4 * MIB), allocator.malloc(4 * MIB)
    allocator.free(hole)
    allocator.malloc(50 * MIB)
    allocator.free(keep)
    at_peak = allocator.fragmentation_at_peak()
    assert at_peak.allocated_bytes == 54 * MIB == allocator.stats.peak_allocated_bytes
    assert at_peak.inactive_split_bytes == 16 * MIB
    assert at_peak.largest_free_bytes == 12 * MIB
    assert allocator.fragmentation().largest_free_bytes == 20 * MIB
    allocator.reset_peaks()
    assert allocator.stats.peak_allocated_bytes == 50 * MIB == allocator.fragmentation_at_peak().allocated_bytes


SIZES = st.one_of(st.integers(1, 4 * KIB), st.integers(1, 2 * MIB), st.integers(MIB, 40 * MIB))
STEPS = st.lists(st.tuples(SIZES, st.integers(0, 9), st.integers(0, 2**16)), min_size=1, max_size=60)
SETTINGS = st.builds(
    AllocatorSettings,
    max_split_bytes=st.sampled_from([2**63 - 1, 20 * MIB, 33 * MIB]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.3]),
    roundup_power2_divisions=st.sampled_from([(0,) * 16, (4,) * 16]),
    expandable_segments=st.booleans(),
    memory_fraction=st.sampled_from([None, 0.8]),
)


def run(allocator: CachingAllocator, steps: list[tuple[int, int, int]]) -> tuple[list[Block], int]:
    """Allocate, free, record and complete streams as the numbers say; live blocks and how often memory ran out."""
    live: list[Block] = []
    refused = 0
    for size, choice, number in steps:
        if choice < 6 or not live:
            try:
                live.append(allocator.malloc(size, stream=number % 2))
            except OutOfMemory as error:
                refused += 1
                check_refusal(allocator, error)
        elif choice == 9:
            allocator.record_stream(live[number % len(live)], 5 + number % 2)
        else:
            allocator.free(live.pop(number % len(live)))
        if choice == 0:
            allocator.complete(5 + number % 2)
        check(allocator, live)
    return live, refused


def check_refusal(allocator: CachingAllocator, error: OutOfMemory) -> None:
    """Out of memory is right: nothing cached could be given back, and what is asked for does not fit."""
    if not allocator.settings.expandable_segments:
        assert not any(block.free and block.whole for block in allocator.blocks())
        assert error.reserved_bytes + error.segment_bytes > error.limit_bytes and error.short_bytes > 0


def check(allocator: CachingAllocator, live: list[Block]) -> None:
    stats, blocks = allocator.stats, list(allocator.blocks())
    ends = [block.address + block.size for block in blocks]
    assert all(end <= block.address for end, block in zip(ends, blocks[1:], strict=False)), "blocks overlap"
    assert {block for block in blocks if block.allocated} == set(live)
    assert stats.allocated_bytes == sum(block.size for block in live)
    assert stats.active_bytes == sum(block.size for block in blocks if not block.free)
    assert stats.reserved_bytes == sum(block.size for block in blocks)
    assert stats.reserved_bytes <= allocator.limit_bytes
    if not allocator.settings.expandable_segments:  # their pages can go over the fraction, also in PyTorch
        assert stats.reserved_bytes <= allocator.fraction_bytes
    assert stats.requested_bytes <= stats.active_bytes
    assert all(block.requested <= block.size for block in live)
    free = {block for pool in allocator.pools.values() for block in pool.blocks()}
    assert free == {block for block in blocks if block.free}
    assert not any(block.free and block.next is not None and block.next.free for block in blocks), "not merged"
    if not allocator.settings.expandable_segments:
        assert stats.inactive_split_bytes == sum(block.size for block in free if not block.whole)


@hypothesis_settings(max_examples=150, deadline=None)
@given(SETTINGS, STEPS, st.sampled_from([None, 64 * MIB, 200 * MIB]))
def test_whatever_is_asked(settings: AllocatorSettings, steps: list[tuple[int, int, int]],
                           capacity: int | None) -> None:
    allocator = CachingAllocator(settings, capacity)
    live, _ = run(allocator, steps)
    for block in live:
        allocator.free(block)
    allocator.synchronize()
    check(allocator, [])
    assert all(block.free for block in allocator.blocks())
    if not settings.expandable_segments:
        assert all(block.whole for block in allocator.blocks()), "only whole free segments are left"
    allocator.empty_cache()
    assert allocator.stats.reserved_bytes == 0
    assert not any(block.mapped for block in allocator.segments.values()), "a range that got no memory may stay, empty"


@hypothesis_settings(max_examples=60, deadline=None)
@given(STEPS)
def test_expandable_and_normal_agree_but_for_unsplit_remainders(steps: list[tuple[int, int, int]]) -> None:
    normal, expandable = CachingAllocator(), CachingAllocator(AllocatorSettings(expandable_segments=True))
    live, _ = run(normal, steps)
    run(expandable, steps)
    rounded = sum(normal.settings.rounded(block.requested) for block in live)
    large = sum(block.size > MIB for block in live)
    assert expandable.stats.allocated_bytes == rounded
    assert rounded <= normal.stats.allocated_bytes <= rounded + large * MIB
    assert expandable.stats.requested_bytes == normal.stats.requested_bytes


def test_running_out_happens_in_these_tests() -> None:
    """The property above would say little if memory never ran out."""
    numbers = random.Random(0)
    refused = 0
    for expandable in (False, True):
        allocator = CachingAllocator(AllocatorSettings(expandable_segments=expandable), 120 * MIB)
        steps = [(numbers.randrange(1, 40 * MIB), numbers.randrange(10), numbers.randrange(2**16)) for _ in range(80)]
        count = run(allocator, steps)[1]
        assert count > 0 and allocator.stats.num_alloc_retries >= count
        refused += count
    assert refused < 100
