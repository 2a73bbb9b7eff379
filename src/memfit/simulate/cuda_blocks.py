"""Blocks of device memory and the ordered sets of free ones."""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from enum import Enum

_ADDRESS_BITS, _ORDER_BITS = 64, 32
_SIZE_SHIFT = _ADDRESS_BITS + _ORDER_BITS


class Ties(Enum):
    """Which of several free blocks of one size is used; it changed between versions of PyTorch."""

    LOWEST_ADDRESS = "lowest address"  # up to 2.11
    OLDEST_BLOCK = "oldest block"  # 2.12; a block is made by a split, or with its segment
    OLDEST_SEGMENT = "oldest segment"  # 2.14, then the lowest address in it; taken for 2.13, which was not checked

    @classmethod
    def of_version(cls, torch_version: str) -> Ties:
        """The rule of a version such as `2.11.0+cu130`; the newest for one that is not understood."""
        numbers = re.match(r"(\d+)\.(\d+)", torch_version)
        if numbers is None:
            return cls.OLDEST_SEGMENT
        major, minor = int(numbers[1]), int(numbers[2])
        if (major, minor) <= (2, 11):
            return cls.LOWEST_ADDRESS
        return cls.OLDEST_BLOCK if (major, minor) == (2, 12) else cls.OLDEST_SEGMENT


@dataclass(slots=True, eq=False)
class Range:
    """The virtual addresses of one expandable segment: `size` bytes from `address`, backed page by page."""

    address: int
    size: int
    page_bytes: int


@dataclass(slots=True, eq=False)
class FreeBlocks:
    """The free blocks of one pool and one stream, ordered by size, then order (see Ties), then address.

    A key is one whole number made of the three: comparing whole numbers is what makes a search quick.
    `unmapped` holds address space without memory behind it, ordered by address (expandable segments only).
    """

    small: bool
    stream: int
    keys: list[int] = field(default_factory=list)
    by_key: dict[int, Block] = field(default_factory=dict)
    unmapped: list[Block] = field(default_factory=list)

    def find(self, size: int) -> int:
        """Position in `keys` of the best fit: the smallest block of at least `size` bytes, ties by order."""
        return bisect_left(self.keys, size << _SIZE_SHIFT)

    def insert(self, block: Block) -> None:
        key = block.size << _SIZE_SHIFT | block.order << _ADDRESS_BITS | block.address
        insort(self.keys, key)
        self.by_key[key] = block
        block.free = True

    def remove(self, block: Block) -> None:
        key = block.size << _SIZE_SHIFT | block.order << _ADDRESS_BITS | block.address
        keys = self.keys
        del keys[bisect_left(keys, key)]
        del self.by_key[key]
        block.free = False

    def pop(self, position: int) -> Block:
        """Take out the block at `position` of `keys`."""
        block = self.by_key.pop(self.keys.pop(position))
        block.free = False
        return block

    def blocks(self) -> list[Block]:
        """The free blocks, smallest first."""
        return [self.by_key[key] for key in self.keys]

    def largest_bytes(self) -> int:
        return self.keys[-1] >> _SIZE_SHIFT if self.keys else 0


class Block:
    """A piece of a segment, linked to its neighbours. `owner` is where it goes when it is free.

    Free blocks of one size are used by `order`, then address; all have order 0 where only the address counts.
    `free`: in `owner`'s ordered set. Neither `free` nor `allocated`: waiting for other streams, or not mapped.
    """

    __slots__ = ("address", "allocated", "cached_at", "events", "free", "mapped", "next", "order", "owner", "prev",
                 "range", "requested", "size", "streams", "tag")

    def __init__(self, address: int, size: int, owner: FreeBlocks, order: int = 0, prev: Block | None = None,
                 range: Range | None = None) -> None:
        self.address = address
        self.size = size
        self.owner = owner
        self.order = order
        self.requested = 0
        self.prev = prev
        self.next: Block | None = None
        self.free = self.allocated = False
        self.mapped = True
        self.range = range
        self.streams: set[int] | None = None  # other streams that use it
        self.events = 0  # of them, those not yet seen to be done
        self.cached_at = 0  # searches of its pool so far, when it became free
        self.tag: object = None

    @property
    def whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.prev is None and self.next is None

    def cut(self, size: int) -> Block:
        """Keep the first `size` bytes; the rest becomes a new right neighbour, in no set yet."""
        rest = Block(self.address + size, self.size - size, self.owner, self.order, self, self.range)
        rest.next = self.next
        if rest.next is not None:
            rest.next.prev = rest
        rest.mapped = self.mapped
        self.next = rest
        self.size = size
        return rest

    def absorb_next(self) -> None:
        """Take over the right neighbour; neither may be in a set. Whose order is kept is for the caller to say."""
        right = self.next
        assert right is not None
        self.size += right.size
        self.next = right.next
        if right.next is not None:
            right.next.prev = self
