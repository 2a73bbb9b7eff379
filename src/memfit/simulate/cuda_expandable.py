"""Expandable segments: one range of addresses for each stream and pool, backed with memory page by page."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import TYPE_CHECKING

from memfit.simulate.cuda_blocks import Block, FreeBlocks, Range
from memfit.simulate.cuda_settings import SMALL_SEGMENT

if TYPE_CHECKING:
    from memfit.simulate.cuda_allocator import CachingAllocator

_NO_DEVICE_BYTES = 2**40  # address space where the device's memory is not given


class ExpandableSegments:
    """Finds room in the ranges of an allocator and maps pages there."""

    def __init__(self, allocator: CachingAllocator, place: Callable[[int, int], int], total_bytes: int | None) -> None:
        self._allocator = allocator
        self._place = place
        self._total_bytes = total_bytes or _NO_DEVICE_BYTES

    def page_bytes(self, pool: FreeBlocks) -> int:
        """What a range of this pool grows by."""
        return SMALL_SEGMENT if pool.small else self._allocator.settings.large_segment_bytes

    def best_fit(self, pool: FreeBlocks, position: int) -> int:
        """From `position` on, pass over blocks that could grow to more than the next one could."""
        blocks = pool.by_key
        while position + 1 < len(pool.keys):
            here, after = blocks[pool.keys[position]], blocks[pool.keys[position + 1]]
            if _growable_bytes(after) >= _growable_bytes(here):
                break
            position += 1
        return position

    def allocate(self, pool: FreeBlocks, size: int) -> Block | None:
        """A free block of at least `size` bytes, made by mapping as few pages as will do; None if memory runs out."""
        block = self._room(pool, size)
        if not block.mapped:
            mapped = self._map(block, min(block.size, size))
            if mapped is None:
                return None
            block = mapped
        while block.size < size:
            behind = block.next
            assert behind is not None
            mapped = self._map(behind, min(size - block.size, behind.size))
            if mapped is None:
                return None
            block = mapped
        pool.remove(block)
        return block

    def _room(self, pool: FreeBlocks, size: int) -> Block:
        """The lowest place where free and unmapped neighbours are together long enough, else a new range."""
        for block in pool.unmapped:
            start = block.prev if block.prev is not None and block.prev.free else block
            if _has_room(start, size):
                return start
        return self._new_range(pool)

    def _new_range(self, pool: FreeBlocks) -> Block:
        page = self.page_bytes(pool)
        size = -(-(self._total_bytes + self._total_bytes // 8) // page) * page
        space = Range(self._place(size, pool.stream), size, page)
        block = Block(space.address, size, pool, self._allocator.segment_order(), range=space)
        block.mapped = False
        _insert_unmapped(block)
        self._allocator.segments[block.address] = block
        return block

    def _map(self, block: Block, size: int) -> Block | None:
        """Back the first `size` bytes of an unmapped block, in whole pages; the free block that they end up in."""
        assert block.range is not None
        allocator, page = self._allocator, block.range.page_bytes
        mapped = -(-size // page) * page
        if allocator.stats.reserved_bytes + mapped > allocator.limit_bytes:
            return None
        block.owner.unmapped.remove(block)
        if mapped < block.size:
            rest = block.cut(mapped)
            rest.order = allocator.split_order(rest.order)
            _insert_unmapped(rest)
        block.mapped = True
        allocator.count_reserved(mapped)
        allocator.record_event("segment_map", block.address, mapped, block.owner.stream)
        return _merge_free(block, allocator.searches)


def unmap(allocator: CachingAllocator, block: Block) -> None:
    """Take the pages that lie wholly in the free `block` away from it."""
    space, pool = block.range, block.owner
    assert space is not None
    page, offset = space.page_bytes, block.address - space.address
    before = -offset % page
    size = (offset + block.size) // page * page - (offset + before)
    if size <= 0:
        return
    pool.remove(block)
    middle = block
    if before:
        middle = block.cut(before)
        block.order = allocator.split_order(block.order)
        pool.insert(block)
    if size < middle.size:
        rest = middle.cut(size)
        rest.order = allocator.split_order(rest.order)
        pool.insert(rest)
    allocator.count_reserved(-size)
    allocator.record_event("segment_unmap", middle.address, size, pool.stream)
    middle.mapped = False
    middle = _merge_unmapped(middle)
    if middle.whole:
        pool.unmapped.remove(middle)
        del allocator.segments[space.address]


def _merge_free(block: Block, searches: int) -> Block:
    left, right = block.prev, block.next
    if left is not None and left.free:
        left.owner.remove(left)
        left.absorb_next()
        left.order = block.order
        block = left
    if right is not None and right.free:
        right.owner.remove(right)
        block.absorb_next()
    block.cached_at = searches
    block.owner.insert(block)
    return block


def _merge_unmapped(block: Block) -> Block:
    left, right = block.prev, block.next
    if right is not None and not right.mapped:
        right.owner.unmapped.remove(right)
        block.absorb_next()
    if left is not None and not left.mapped:
        left.absorb_next()
        left.order = block.order
        return left
    _insert_unmapped(block)
    return block


def _insert_unmapped(block: Block) -> None:
    insort(block.owner.unmapped, block, key=lambda other: other.address)


def _growable_bytes(block: Block) -> int:
    return block.size + (block.next.size if block.next is not None and not block.next.mapped else 0)


def _has_room(block: Block | None, size: int) -> bool:
    while size > 0 and block is not None and (block.free or not block.mapped):
        size -= block.size
        block = block.next
    return size <= 0
