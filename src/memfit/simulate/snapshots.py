"""PyTorch's memory snapshots (`torch.cuda.memory._dump_snapshot`), read from files that may come from anyone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memfit.core.errors import UsageError
from memfit.simulate.cuda_settings import SIZE_CLASSES, UNLIMITED, AllocatorSettings
from memfit.simulate.plain_pickle import NotPlain, load_plain

MAX_FILE_BYTES = 2**29
ALLOCATED, PENDING, INACTIVE = "active_allocated", "active_pending_free", "inactive"
_ADVICE = "give a file that torch.cuda.memory._dump_snapshot wrote, or memfit estimate --snapshot"
_PLACED = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"}
_MOST_DEVICES = 1024


@dataclass(frozen=True, slots=True)
class SnapshotBlock:
    """A block at the moment of the snapshot; sizes in bytes. `frames` are dicts with name, filename, line."""

    address: int
    size: int
    requested: int
    state: str
    frames: tuple[dict[str, Any], ...] | list[dict[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class SnapshotSegment:
    """A segment at the moment of the snapshot, with its blocks in order of address."""

    address: int
    size: int
    stream: int
    device: int
    small: bool
    expandable: bool
    blocks: tuple[SnapshotBlock, ...]


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """One recorded event. `size` is the requested one for alloc and free; for oom `address` is the free memory."""

    action: str
    address: int
    size: int
    stream: int
    time_us: int
    frames: list[dict[str, Any]] | tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Segments of all devices, and for each device its events, oldest first."""

    segments: tuple[SnapshotSegment, ...]
    traces: tuple[tuple[SnapshotEvent, ...], ...]
    settings: dict[str, Any]

    def recorded_settings(self) -> AllocatorSettings:
        """The allocator's settings, as far as the snapshot holds them (it does not before torch 2.1)."""
        text, given = self.settings.get("PYTORCH_CUDA_ALLOC_CONF"), self.settings
        try:
            settings = AllocatorSettings.parse(text) if isinstance(text, str) else AllocatorSettings()
        except UsageError:
            settings = AllocatorSettings()
        split, divisions = given.get("max_split_size"), given.get("roundup_power2_divisions")
        if isinstance(split, int) and split > 0:
            settings = replace(settings, max_split_bytes=min(split, UNLIMITED))
        if isinstance(divisions, dict) and len(divisions) == SIZE_CLASSES:
            settings = replace(settings, roundup_power2_divisions=tuple(map(_size, divisions.values())))
        return replace(settings, expandable_segments=given.get("expandable_segments") is True)

    def devices(self) -> list[int]:
        """Devices that hold segments or recorded events."""
        held = {segment.device for segment in self.segments}
        return sorted(held | {device for device, trace in enumerate(self.traces) if trace})


def load_snapshot(path: Path, *, max_bytes: int = MAX_FILE_BYTES, limit_s: float = 60.0) -> Snapshot:
    """Read a snapshot without ever running code that it contains.

    Raises UsageError, one line: no such file, too large (`max_bytes`), too slow (`limit_s`), broken, malicious, or a
    pickle of something else.
    """
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise UsageError(f"{path} has {size} bytes, more than the {max_bytes} that are read", "record fewer events "
                             "(torch.cuda.memory._record_memory_history(max_entries=...))")
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", _ADVICE) from None
    try:
        return parse_snapshot(load_plain(data, limit_s=limit_s))
    except NotPlain as error:
        raise UsageError(f"{path} is not loaded as an allocator snapshot: {error.message}", _ADVICE) from None


def parse_snapshot(content: Any) -> Snapshot:
    """Check the shape of a snapshot's content. Raises NotPlain naming the part that is not as it should be."""
    if isinstance(content, list):  # torch.cuda.memory_snapshot(): segments only
        content = {"segments": content}
    if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
        raise NotPlain("it holds no list of segments")
    part = "a segment"
    try:
        segments = tuple(_segment(entry) for entry in content["segments"])
        part = "an event"
        traces = tuple(tuple(_event(entry) for entry in trace) for trace in content.get("device_traces") or ())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotPlain(f"it holds {part} with a wrong or missing field ({error})") from None
    settings = content.get("allocator_settings")
    return Snapshot(segments, traces, settings if isinstance(settings, dict) else {})


def _segment(entry: dict[str, Any]) -> SnapshotSegment:
    address, blocks = _size(entry["address"]), list[SnapshotBlock]()
    at = address
    for block in entry["blocks"]:
        size = _size(block["size"])
        blocks.append(SnapshotBlock(at, size, _size(block.get("requested_size", size)), _state(block["state"]),
                                    _frames(block)))
        at += size
    if at - address != _whole(entry["total_size"]):
        raise ValueError(f"blocks of the segment at {address:#x} do not fill it")
    device = _size(entry.get("device", 0))
    if device >= _MOST_DEVICES:
        raise ValueError(f"device {device}")
    return SnapshotSegment(address, at - address, _whole(entry.get("stream", 0)), device,
                           entry.get("segment_type") == "small", entry.get("is_expandable") is True, tuple(blocks))


def _event(entry: dict[str, Any]) -> SnapshotEvent:
    action = entry["action"]
    if type(action) is not str:
        raise ValueError("an action that is not text")
    if action in _PLACED:
        address, size = entry["addr"], entry["size"]
    else:
        address, size = entry.get("addr", entry.get("device_free", 0)), entry.get("size", 0)
    return SnapshotEvent(action, _size(address), _size(size), _whole(entry.get("stream") or 0),
                         _whole(entry.get("time_us", 0)), _frames(entry))


def _state(state: Any) -> str:
    if state == "active_awaiting_free":  # its name in old versions
        return PENDING
    if type(state) is not str or state not in (ALLOCATED, PENDING, INACTIVE):
        raise ValueError("a block state that is not known")
    return state


def _frames(entry: dict[str, Any]) -> list[dict[str, Any]] | tuple[dict[str, Any], ...]:
    frames = entry.get("frames") or ()
    if not isinstance(frames, list):
        return ()
    return frames


def _size(value: Any) -> int:
    if _whole(value) < 0:
        raise ValueError("a size or address below zero")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:  # its text is not shown: writing nested data out can take for ever
        raise ValueError(f"a {type(value).__name__} in place of a whole number")
    return value
