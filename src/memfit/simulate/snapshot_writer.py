"""Writing what an allocator holds and did as a PyTorch memory snapshot, which its viewer (memory_viz) opens."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from memfit.core.files import write_atomic
from memfit.core.trace import Storage
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_blocks import Block
from memfit.simulate.cuda_log import LogEntry
from memfit.simulate.cuda_settings import UNLIMITED, AllocatorSettings
from memfit.simulate.snapshots import ALLOCATED, INACTIVE, PENDING

_PROTOCOL = 4  # the newest that the viewer reads
_UNKNOWN = "unknown"  # the viewer's name for what has no category; it must occur where others do


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an allocation comes from. `frames`, innermost first, are `(function, file, line)`."""

    frames: tuple[tuple[str, str, int], ...] = ()
    category: str = _UNKNOWN


Describe = Callable[[object], Origin]


def storage_origin(storage: Storage) -> Origin:
    """How a traced storage shows in the viewer: operator, module, phase; shape and dtype beside the operator."""
    shape = "x".join(map(str, storage.shape)) or "scalar"
    frames = ((f"{storage.op or 'resident'} [{shape} {storage.dtype}]", storage.module or "(no module)", 0),
              (storage.phase or "before", "step", 0))
    return Origin(frames, storage.category or _UNKNOWN)


def snapshot_content(allocator: CachingAllocator, describe: Describe | None = None, device: int = 0) -> dict[str, Any]:
    """The snapshot as plain data. `describe(tag)` tells where an allocation with this tag comes from.

    The allocator should have been made with `record=True`; without, the snapshot has segments and no history.
    """
    known = _Origins(describe)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(device + 1)]
    traces[device] = [_event(entry, known) for entry in allocator.log or ()]
    if known.categories - {_UNKNOWN}:
        traces[device].append({"action": "snapshot", "addr": 0, "size": allocator.stats.active_bytes, "stream": 0,
                               "time_us": allocator.now_us, "frames": [], "category": _UNKNOWN})
    return {"segments": [_segment(blocks, device, known) for blocks in _contiguous(allocator)],
            "device_traces": traces, "allocator_settings": _settings(allocator.settings), "external_annotations": []}


def write_snapshot(path: Path, allocator: CachingAllocator, describe: Describe | None = None) -> None:
    """Write `snapshot_content` to a file. Raises UsageError if it cannot be written."""
    write_atomic(path, pickle.dumps(snapshot_content(allocator, describe), protocol=_PROTOCOL))


class _Origins:
    """Frames and category of each tag, made once; the viewer shares equal frames, and so does the file."""

    def __init__(self, describe: Describe | None) -> None:
        self._describe = describe
        self._made: dict[int, tuple[object, list[dict[str, Any]], str]] = {}
        self.categories: set[str] = set()

    def of(self, tag: object) -> tuple[list[dict[str, Any]], str]:
        if self._describe is None or tag is None:
            return [], _UNKNOWN
        made = self._made.get(id(tag))
        if made is None:
            origin = self._describe(tag)
            frames = [{"name": name, "filename": file, "line": line} for name, file, line in origin.frames]
            made = self._made[id(tag)] = (tag, frames, origin.category)
            self.categories.add(origin.category)
        return made[1], made[2]


def _event(entry: LogEntry, known: _Origins) -> dict[str, Any]:
    place = "device_free" if entry.action == "oom" else "addr"
    frames, category = known.of(entry.tag)
    event = {"action": entry.action, place: entry.address, "size": entry.size, "stream": entry.stream,
             "time_us": entry.time_us, "frames": frames}
    if entry.tag is not None and known.categories:
        event["category"] = category
    return event


def _contiguous(allocator: CachingAllocator) -> Iterator[list[Block]]:
    """The blocks of each segment, or of each unbroken mapped part of an expandable one."""
    def start(block: Block) -> int:
        while block.prev is not None and block.prev.mapped:
            block = block.prev
        return block.address

    starts: dict[Block, int] = {}
    for block in allocator.blocks():
        starts[block] = starts[block.prev] if block.prev in starts else start(block)
    for _, blocks in groupby(starts, key=starts.__getitem__):
        yield list(blocks)


def _segment(blocks: list[Block], device: int, known: _Origins) -> dict[str, Any]:
    first, active = blocks[0], [block for block in blocks if not block.free]
    return {
        "device": device,
        "address": first.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in blocks if block.allocated),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": first.owner.stream,
        "segment_type": "small" if first.owner.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": first.range is not None,
        "frames": [],
        "blocks": [_block(block, known) for block in blocks],
    }


def _block(block: Block, known: _Origins) -> dict[str, Any]:
    state = INACTIVE if block.free else ALLOCATED if block.allocated else PENDING
    requested = 0 if block.free else block.requested
    return {"address": block.address, "size": block.size, "requested_size": requested, "state": state,
            "frames": [] if block.free else known.of(block.tag)[0]}


def _settings(settings: AllocatorSettings) -> dict[str, Any]:
    unlimited = settings.max_split_bytes == UNLIMITED
    return {"max_split_size": -1 if unlimited else settings.max_split_bytes,
            "garbage_collection_threshold": float(settings.garbage_collection_threshold),
            "expandable_segments": settings.expandable_segments,
            "roundup_power2_divisions": {str(1 << i): d for i, d in enumerate(settings.roundup_power2_divisions)}}
