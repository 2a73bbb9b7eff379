"""Random requests to an allocator, and what the simulated one makes of them, in the real one's terms."""

from __future__ import annotations

import random

from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_blocks import Block, Ties
from memfit.simulate.cuda_settings import AllocatorSettings
from memfit.simulate.cuda_stats import OutOfMemory

SETTINGS = (
    "", "expandable_segments:True", "max_split_size_mb:20", "max_split_size_mb:50,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:4", "roundup_power2_divisions:[1:8,16:2,>:1]",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.5", "per_process_memory_fraction:0.4",
    "large_segment_size_mb:64", "expandable_segments:True,large_segment_size_mb:32",
    "expandable_segments:True,per_process_memory_fraction:0.5", "expandable_segments:True,roundup_power2_divisions:4",
    "garbage_collection_threshold:0.4,per_process_memory_fraction:0.9,max_split_size_mb:30",
    "expandable_segments:True,max_split_size_mb:30",
)
OUT_OF_MEMORY, NO_ALLOCATION = -1, -2
Request = tuple[str, ...]


def requests(seed: int, count: int) -> list[Request]:
    """Requests in the words of real_allocator.cpp; odd seeds use several streams."""
    numbers, live, made = random.Random(seed), list[int](), list[Request]()
    streams = [0, 0, 0, 0, 0, 0, 1, 2] if seed % 2 else [0]
    while len(made) < count:
        draw = numbers.random()
        if draw < 0.55 or not live:
            live.append(len(made))
            made.append(("a", str(len(made)), str(_size(numbers)), str(numbers.choice(streams))))
        elif draw < 0.9:
            made.append(("f", str(live.pop(numbers.randrange(len(live))))))
        elif draw < 0.94 and len(streams) > 1:
            made.append(("r", str(numbers.choice(live)), str(numbers.randrange(4))))
        elif draw < 0.96 and len(streams) > 1:
            made.append(("c", str(numbers.randrange(4))))
        elif draw >= 0.99:
            made.append((numbers.choice("ep"),))
    return made


def devices(seed: int) -> tuple[int, int]:
    """Capacity and total memory in bytes: small, so that memory runs out."""
    numbers = random.Random(seed)
    total = numbers.choice([120, 200, 400, 800]) << 20
    return total - (numbers.choice([0, 7, 33]) << 20), total


def simulated(script: list[Request], settings: str, capacity: int, total: int, ties: Ties) -> list[list[int]]:
    """For each request the address, then the statistics in the order of real_allocator.cpp."""
    allocator = CachingAllocator(AllocatorSettings.parse(settings), capacity, total_bytes=total, ties=ties)
    live: dict[str, Block] = {}
    return [[_do(allocator, live, request), *_figures(allocator)] for request in script]


def _do(allocator: CachingAllocator, live: dict[str, Block], request: Request) -> int:
    kind, *rest = request
    if kind == "a":
        try:
            block = live[rest[0]] = allocator.malloc(int(rest[1]), int(rest[2]))
        except OutOfMemory:
            return OUT_OF_MEMORY
        return block.address
    if kind == "f" and rest[0] in live:
        allocator.free(live.pop(rest[0]))
    elif kind == "r" and rest[0] in live and live[rest[0]].size:
        allocator.record_stream(live[rest[0]], int(rest[1]))
    elif kind == "c":
        allocator.complete(int(rest[0]))
    elif kind == "e":
        allocator.empty_cache()
    elif kind == "p":
        allocator.reset_peaks()
    return NO_ALLOCATION


def _figures(allocator: CachingAllocator) -> list[int]:
    stats = allocator.stats
    return [stats.allocated_bytes, stats.active_bytes, stats.requested_bytes, stats.reserved_bytes,
            stats.inactive_split_bytes, stats.peak_allocated_bytes, stats.peak_reserved_bytes,
            stats.num_alloc_retries, stats.num_ooms]


def _size(numbers: random.Random) -> int:
    kib, mib = 1 << 10, 1 << 20
    return numbers.choice([numbers.randrange(1, 5 * kib), numbers.randrange(1, 2 * mib), 3 * mib,
                           numbers.randrange(mib, 12 * mib), numbers.randrange(mib, 60 * mib),
                           0 if numbers.random() < 0.05 else 512])
