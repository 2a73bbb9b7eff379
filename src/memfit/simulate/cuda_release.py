"""Giving memory back to the driver: garbage collection, oversize blocks, everything that is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memfit.simulate.cuda_blocks import Block, FreeBlocks
from memfit.simulate.cuda_expandable import unmap
from memfit.simulate.cuda_settings import UNLIMITED

if TYPE_CHECKING:
    from memfit.simulate.cuda_allocator import CachingAllocator


def release_cached(allocator: CachingAllocator) -> None:
    """Free every segment, and unmap every page, in which nothing is in use."""
    for pool in sorted(allocator.pools.values(), key=lambda pool: pool.small):
        for block in pool.blocks():
            if block.range is not None:
                unmap(allocator, block)
            elif block.whole:
                release_segment(allocator, block)


def release_segment(allocator: CachingAllocator, block: Block) -> None:
    """Free the segment that the free `block` is all of."""
    block.owner.remove(block)
    del allocator.segments[block.address]
    allocator.count_reserved(-block.size)
    allocator.record_event("segment_free", block.address, block.size, block.owner.stream)


def release_oversize(allocator: CachingAllocator, pool: FreeBlocks, rounded: int) -> bool:
    """With a max_split_size: free one cached block that is large enough, or the largest until enough is back.

    Returns whether it is worth asking the driver again.
    """
    least = allocator.settings.max_split_bytes
    if least == UNLIMITED or allocator.settings.expandable_segments:
        return False
    wanted = max(rounded, least)
    position = pool.find(wanted)
    if position < len(pool.keys):
        release_segment(allocator, pool.by_key[pool.keys[position]])
        return True
    released = 0
    while released < wanted and pool.largest_bytes() >= least:
        block = pool.by_key[pool.keys[-1]]
        released += block.size
        release_segment(allocator, block)
    return released >= wanted


def collect_garbage(allocator: CachingAllocator) -> None:
    """Above the threshold, free whole large blocks that have been cached for longer than the average."""
    threshold = int(allocator.settings.garbage_collection_threshold * allocator.fraction_bytes)
    target = allocator.stats.reserved_bytes - threshold
    cached = [block for pool in allocator.pools.values() if not pool.small
              for block in pool.blocks() if block.whole and block.range is None]
    while target > 0 and cached:
        ages = [allocator.searches - block.cached_at for block in cached]
        average, kept = sum(ages) / len(ages), list[Block]()
        for block, age in zip(cached, ages, strict=True):
            if age >= average:
                target -= block.size
                release_segment(allocator, block)
            else:
                kept.append(block)
        cached = kept
