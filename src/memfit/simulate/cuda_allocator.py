"""PyTorch's CUDA caching allocator: the same choice of blocks and segments, without a device.

Rounding, pools, best fit, splitting, merging, segments and the order of attempts on a full device follow
`c10/cuda/CUDACachingAllocator.cpp`. Every address, segment and statistic is that of the real allocator: in public
traces (torch 2.4 to 2.11), and on random requests to torch 2.11, 2.12 and 2.14 with memory running out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memfit.simulate import cuda_driver, cuda_release
from memfit.simulate.cuda_blocks import Block, FreeBlocks, Ties
from memfit.simulate.cuda_expandable import ExpandableSegments
from memfit.simulate.cuda_log import LogEntry, TopDown
from memfit.simulate.cuda_settings import MIN_BLOCK, SMALL_LIMIT, UNLIMITED, AllocatorSettings
from memfit.simulate.cuda_stats import AllocatorStats, Fragmentation
from memfit.simulate.cuda_streams import PendingEvents


class CachingAllocator:
    """One device's allocator. `capacity_bytes` is what segments may take in all (None: no end).

    `total_bytes`, the card's memory, is what the memory fraction is taken of and sizes the address space of
    expandable segments; it defaults to the capacity. `place(size, stream)` gives addresses of new segments.
    `ties` is the rule of the PyTorch version, by default the newest. With `record`, events go to `log`, stamped with
    `now_us`, which the caller moves on.
    """

    def __init__(self, settings: AllocatorSettings | None = None, capacity_bytes: int | None = None, *,
                 total_bytes: int | None = None, record: bool = False,
                 place: Callable[[int, int], int] | None = None, ties: Ties = Ties.OLDEST_SEGMENT) -> None:
        self.settings = settings = settings or AllocatorSettings()
        self.stats = AllocatorStats()
        self.segments: dict[int, Block] = {}  # address to first block
        self.log: list[LogEntry] | None = [] if record else None
        self.now_us = 0
        total_bytes = total_bytes or capacity_bytes
        self.limit_bytes = UNLIMITED if capacity_bytes is None else capacity_bytes
        self.fraction_bytes = settings.fraction_bytes(total_bytes)
        self.pools: dict[int, FreeBlocks] = {}  # by stream << 1 | small
        self.ties = ties
        self._blocks_have_order = ties is Ties.OLDEST_BLOCK
        self._made = 0  # segments or blocks so far, where their order counts
        self.searches = 0  # of the large pool, counted only where garbage collection is on
        self.place = place or TopDown()
        self._pending = PendingEvents()
        self._peak: Fragmentation | None = None  # None while the newest peak is still the present moment
        self.expandable = ExpandableSegments(self, self.place, total_bytes)
        self._divisions = any(settings.roundup_power2_divisions)
        self._plain_search = settings.max_split_bytes == UNLIMITED and not (
            settings.expandable_segments or self.collects_garbage)

    @property
    def collects_garbage(self) -> bool:
        return self.settings.memory_fraction is not None and self.settings.garbage_collection_threshold > 0

    def malloc(self, size: int, stream: int = 0, tag: object = None) -> Block:
        """A block for `size` bytes on `stream`; `tag` stays with it and goes to the log. Raises OutOfMemory.

        A request of 0 bytes gets an empty block that is nowhere, as in PyTorch.
        """
        if size == 0:
            return Block(0, 0, self.pool(stream, True))
        if self._pending.done:
            self._recycle(self._pending.take_done())
        rounded = self.settings.rounded(size) if self._divisions else (size + 511 & -512 or 512)
        pool = self.pool(stream, rounded <= SMALL_LIMIT)
        position = pool.find(rounded) if self._plain_search else self._search(pool, rounded)
        if position < len(pool.keys):
            block = pool.pop(position)
        else:
            self.close_peak()
            block = cuda_driver.new_memory(self, pool, rounded, size, tag)
        self._hand_out(block, rounded, size)
        block.tag = tag
        if self.log is not None:
            self.record_event("alloc", block.address, size, stream, tag)
        return block

    def free(self, block: Block) -> None:
        """Give a block back. It can be used again at once, or once the streams it was recorded on are done."""
        if not block.allocated:
            if block.size == 0:
                return
            raise ValueError(f"block {block.address:#x} is not allocated")
        if self._peak is None:
            self.close_peak()
        block.allocated = False
        self.stats.allocated_bytes -= block.size
        if self.log is not None:
            self.record_event("free_requested", block.address, block.requested, block.owner.stream, block.tag)
        if block.streams:
            self._pending.add(block)
        else:
            self._put_back(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Another stream uses the block: once freed, it waits until `complete(stream)`."""
        if stream != block.owner.stream:
            block.streams = (block.streams or set()) | {stream}

    def complete(self, stream: int) -> None:
        """All work queued on `stream` so far is done; what waited for it is recycled by the next malloc."""
        self._pending.complete(stream)

    def synchronize(self) -> None:
        """Wait for all streams and recycle what waited for them."""
        self._recycle(self._pending.take_all())

    def empty_cache(self) -> None:
        """Give all segments without a block in use back to the driver."""
        self.close_peak()
        self.synchronize()
        cuda_release.release_cached(self)

    def reset_peaks(self) -> None:
        """Start the maxima again from the present figures."""
        self.stats.reset_peaks()
        self._peak = None

    def fragmentation(self) -> Fragmentation:
        """How reserved memory is used now."""
        stats, pools = self.stats, self.pools.values()
        return Fragmentation(stats.allocated_bytes, stats.requested_bytes, stats.reserved_bytes,
                             stats.inactive_split_bytes, max((pool.largest_bytes() for pool in pools), default=0),
                             sum(len(pool.keys) for pool in pools))

    def fragmentation_at_peak(self) -> Fragmentation:
        """The same at the moment when `peak_allocated_bytes` was first reached."""
        return self._peak or self.fragmentation()

    def pool(self, stream: int, small: bool) -> FreeBlocks:
        """The free blocks that a request of this class on this stream may use."""
        found = self.pools.get(stream << 1 | small)
        if found is None:
            found = self.pools[stream << 1 | small] = FreeBlocks(small, stream)
        return found

    def blocks(self) -> Iterator[Block]:
        """All blocks, by segment address, then address; parts that are not mapped are left out."""
        for address in sorted(self.segments):
            block: Block | None = self.segments[address]
            while block is not None:
                if block.mapped:
                    yield block
                block = block.next

    def _search(self, pool: FreeBlocks, rounded: int) -> int:
        """Position of the block to use, or past the end where a block that fits must not be used."""
        settings = self.settings
        if self.collects_garbage and not pool.small:
            self.searches += 1
        position = pool.find(rounded)
        if position == len(pool.keys):
            return position
        if settings.expandable_segments:
            position = self.expandable.best_fit(pool, position)
        found = pool.by_key[pool.keys[position]].size
        if rounded < settings.max_split_bytes:
            return position if found < settings.max_split_bytes else len(pool.keys)
        return position if found < rounded + settings.max_non_split_rounding_bytes else len(pool.keys)

    def _hand_out(self, block: Block, rounded: int, size: int) -> None:
        """Split off what the request does not need and count the rest as allocated."""
        rest, pool, stats = block.size - rounded, block.owner, self.stats
        was_split = block.prev is not None or block.next is not None
        if pool.small or self.settings.expandable_segments:
            split = rest >= MIN_BLOCK
        else:
            split = rest > SMALL_LIMIT and rounded < self.settings.max_split_bytes
        if split:
            remainder = block.cut(rounded)
            if self._blocks_have_order:
                block.order = self.split_order(block.order)
            remainder.cached_at = self.searches
            pool.insert(remainder)
        if block.range is None:
            if was_split:
                stats.inactive_split_bytes -= block.size
            elif split:
                stats.inactive_split_bytes += rest
        self.count_allocated(block, size)

    def count_allocated(self, block: Block, requested: int) -> None:
        """Mark a block as handed out for a request of `requested` bytes."""
        stats, size = self.stats, block.size
        block.allocated = True
        block.requested = requested
        stats.allocated_bytes += size
        stats.active_bytes += size
        stats.requested_bytes += requested
        if stats.allocated_bytes > stats.peak_allocated_bytes:
            stats.peak_allocated_bytes = stats.allocated_bytes
            self._peak = None
        if stats.active_bytes > stats.peak_active_bytes:
            stats.peak_active_bytes = stats.active_bytes
        if stats.requested_bytes > stats.peak_requested_bytes:
            stats.peak_requested_bytes = stats.requested_bytes

    def _put_back(self, block: Block) -> None:
        """Merge with free neighbours and make it available."""
        stats, owner = self.stats, block.owner
        stats.active_bytes -= block.size
        stats.requested_bytes -= block.requested
        if self.log is not None:
            self.record_event("free_completed", block.address, block.requested, owner.stream, block.tag)
        change = 0
        left, right = block.prev, block.next
        if left is not None and left.free:
            owner.remove(left)
            change -= left.size
            left.absorb_next()
            left.order = block.order
            block = left
        if right is not None and right.free:
            owner.remove(right)
            change -= right.size
            block.absorb_next()
        block.cached_at = self.searches
        owner.insert(block)
        if block.range is None:
            if block.prev is not None or block.next is not None:
                change += block.size
            stats.inactive_split_bytes += change

    def _recycle(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.streams = None
            self._put_back(block)

    def add_segment(self, pool: FreeBlocks, address: int, size: int) -> Block:
        """Enter a segment that the driver gave, as one block that is in no set yet."""
        block = self.segments[address] = Block(address, size, pool, self.segment_order())
        self.count_reserved(size)
        return block

    def segment_order(self) -> int:
        """The order of a new segment's first block."""
        self._made += self.ties is not Ties.LOWEST_ADDRESS
        return self._made

    def split_order(self, inherited: int) -> int:
        """The order of the new one of two blocks after a split."""
        return self.segment_order() if self._blocks_have_order else inherited

    def count_reserved(self, change: int) -> None:
        """Segments or pages came (positive) or went."""
        stats = self.stats
        stats.reserved_bytes += change
        stats.num_device_alloc += change > 0
        stats.num_device_free += change < 0
        stats.peak_reserved_bytes = max(stats.peak_reserved_bytes, stats.reserved_bytes)

    def close_peak(self) -> None:
        """Keep how memory was used at the newest peak, before anything but an allocation changes it."""
        if self._peak is None:
            self._peak = self.fragmentation()

    def record_event(self, action: str, address: int, size: int, stream: int, tag: object = None) -> None:
        """Write an event down, where a log is kept."""
        if self.log is not None:
            self.log.append(LogEntry(action, address, size, stream, tag, self.now_us))
