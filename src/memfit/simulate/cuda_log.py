"""What an allocator writes down of its events, and where it puts new segments."""

from __future__ import annotations

from typing import NamedTuple

from memfit.simulate.cuda_settings import LARGE_ROUNDING


class LogEntry(NamedTuple):
    """One event, with the names of PyTorch's snapshots. `size` is the requested one for alloc and free."""

    action: str
    address: int
    size: int
    stream: int
    tag: object
    time_us: int


class TopDown:
    """Addresses for new segments, each below the last one, as the driver gives them on Linux."""

    def __init__(self, top: int = 0x7F00_0000_0000) -> None:
        self.next = top

    def __call__(self, size: int, stream: int) -> int:
        self.next -= -(-size // LARGE_ROUNDING) * LARGE_ROUNDING
        return self.next
