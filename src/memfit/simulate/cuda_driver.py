"""New memory from the driver: the attempts that the allocator makes, in its order, until it gives up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memfit.simulate.cuda_blocks import Block, FreeBlocks
from memfit.simulate.cuda_release import collect_garbage, release_cached, release_oversize
from memfit.simulate.cuda_stats import OutOfMemory

if TYPE_CHECKING:
    from memfit.simulate.cuda_allocator import CachingAllocator


def new_memory(allocator: CachingAllocator, pool: FreeBlocks, rounded: int, size: int, tag: object) -> Block:
    """A block of at least `rounded` bytes for a request that no cached block serves. Raises OutOfMemory.

    In order: garbage collection, the driver, freeing oversize blocks and the driver again, freeing everything that
    is cached (a retry) and the driver a last time.
    """
    segment = allocator.settings.segment_bytes(rounded)
    if allocator.collects_garbage:
        collect_garbage(allocator)
    block = _grow(allocator, pool, rounded, segment)
    if block is None and release_oversize(allocator, pool, rounded):
        block = _grow(allocator, pool, rounded, segment)
    if block is None:
        allocator.synchronize()
        release_cached(allocator)
        allocator.stats.num_alloc_retries += 1
        block = _grow(allocator, pool, rounded, segment)
    if block is None:
        raise _out_of_memory(allocator, pool, rounded, segment, size, tag)
    return block


def _grow(allocator: CachingAllocator, pool: FreeBlocks, rounded: int, segment: int) -> Block | None:
    """One attempt at the driver; None where the device or the memory fraction refuses."""
    reserved = allocator.stats.reserved_bytes
    if reserved + segment > allocator.fraction_bytes:
        return None
    if allocator.settings.expandable_segments:
        return allocator.expandable.allocate(pool, rounded)
    if reserved + segment > allocator.limit_bytes:
        return None
    block = allocator.add_segment(pool, allocator.place(segment, pool.stream), segment)
    allocator.record_event("segment_alloc", block.address, segment, pool.stream)
    return block


def _out_of_memory(allocator: CachingAllocator, pool: FreeBlocks, rounded: int, segment: int, size: int,
                   tag: object) -> OutOfMemory:
    stats, limit = allocator.stats, min(allocator.limit_bytes, allocator.fraction_bytes)
    if allocator.settings.expandable_segments:
        page = allocator.expandable.page_bytes(pool)
        segment = -(-rounded // page) * page
    stats.num_ooms += 1
    allocator.record_event("oom", max(0, limit - stats.reserved_bytes), rounded, pool.stream, tag)
    return OutOfMemory(size, segment, limit, stats.allocated_bytes, stats.reserved_bytes,
                       allocator.fragmentation().largest_free_bytes, pool.stream, tag)
