"""What the caching allocator counts, and what it says when memory runs out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class AllocatorStats:
    """Running figures in bytes, with their maxima since the last reset; named as in `torch.cuda.memory_stats`.

    allocated: blocks handed out. active: the same, until other streams are done with them too. requested: what was
    asked for. reserved: segments held. inactive_split: free blocks whose segment is partly in use.
    """

    allocated_bytes: int = 0
    active_bytes: int = 0
    requested_bytes: int = 0
    reserved_bytes: int = 0
    inactive_split_bytes: int = 0
    peak_allocated_bytes: int = 0
    peak_active_bytes: int = 0
    peak_requested_bytes: int = 0
    peak_reserved_bytes: int = 0
    num_alloc_retries: int = 0
    num_ooms: int = 0
    num_device_alloc: int = 0
    num_device_free: int = 0

    def reset_peaks(self) -> None:
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_active_bytes = self.active_bytes
        self.peak_requested_bytes = self.requested_bytes
        self.peak_reserved_bytes = self.reserved_bytes


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """How reserved memory is used at one moment. All in bytes but `free_blocks`."""

    allocated_bytes: int
    requested_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    largest_free_bytes: int
    free_blocks: int

    @property
    def idle_bytes(self) -> int:
        """Reserved, in no block that is handed out."""
        return self.reserved_bytes - self.allocated_bytes

    @property
    def rounding_bytes(self) -> int:
        """Handed out, but not asked for."""
        return self.allocated_bytes - self.requested_bytes


class OutOfMemory(Exception):
    """The device would refuse this allocation, also after everything that is cached was given back.

    `segment_bytes` is what the driver was asked for, `limit_bytes` what the allocator may hold in all;
    `reserved_bytes` is what it still holds: segments in which at least one block is in use.
    """

    def __init__(self, requested_bytes: int, segment_bytes: int, limit_bytes: int, allocated_bytes: int,
                 reserved_bytes: int, largest_free_bytes: int, stream: int, tag: object) -> None:
        super().__init__(f"tried to allocate {segment_bytes} B for a request of {requested_bytes} B with "
                         f"{reserved_bytes} B reserved, {allocated_bytes} B of it allocated, of {limit_bytes} B")
        self.requested_bytes = requested_bytes
        self.segment_bytes = segment_bytes
        self.limit_bytes = limit_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.largest_free_bytes = largest_free_bytes
        self.stream = stream
        self.tag = tag

    @property
    def short_bytes(self) -> int:
        """By how much the device is too small for this allocation."""
        return self.reserved_bytes + self.segment_bytes - self.limit_bytes
