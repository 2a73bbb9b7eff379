"""Folders that memory may be moved to: whether they are on a disk, and how much room they have."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from memfit.core.units import GIB

MARGIN_BYTES = GIB
"""What is left free on a disk where no budget says otherwise."""
_IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
_MOUNTS = Path("/proc/self/mountinfo")


def offload_folder(folder: str = "") -> Path:
    """The folder that was asked for; else where temporary files go (TMPDIR)."""
    return Path(folder or tempfile.gettempdir())


def why_unsuitable(folder: Path, mounts: Path = _MOUNTS) -> str | None:
    """One line if files in the folder cannot hold what memory does not; else None."""
    if os.name != "posix":
        return "files are only mapped on Linux and macOS"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} is no folder that can be written to"
    kind = filesystem_of(folder, mounts)
    return f"{folder} is {kind}: what is there is in memory" if kind in _IN_MEMORY else None


def filesystem_of(folder: Path, mounts: Path = _MOUNTS) -> str:
    """The type of the file system that the folder lies in (`ext4`, `tmpfs`); empty where that cannot be read."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    path, best, kind = folder.resolve(), -1, ""
    for fields in (line.split() for line in lines):
        point = Path(fields[4].replace("\\040", " "))
        if (point == path or point in path.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[fields.index("-") + 1]
    return kind


def free_disk_bytes(folder: Path) -> int:
    """What memory may take of the disk that the folder is on: what is free, less a margin. 0 for a folder that is not there."""
    try:
        return max(0, shutil.disk_usage(folder).free - MARGIN_BYTES)
    except OSError:
        return 0
