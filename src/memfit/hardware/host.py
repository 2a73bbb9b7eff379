"""How much memory this machine has and has free, within its container's limit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from memfit.core.units import KIB

_NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number where there is no limit
_CGROUPS = Path("/sys/fs/cgroup")


def capacity_host_bytes() -> int:
    """The machine's memory, or its container's limit where that is smaller."""
    total, limit = _total_bytes(), container_limit_bytes()
    return total if limit is None else min(total, limit)


def free_host_bytes() -> int:
    """What can be taken now: memory available, or what the container's limit leaves where that is smaller."""
    return min([_available_bytes(), *(max(0, limit - used) for limit, used in container_groups())])


def container_limit_bytes() -> int | None:
    """The smallest memory limit of the control groups that this process is in; None where there is none."""
    return min((limit for limit, _ in container_groups()), default=None)


def container_groups(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> list[tuple[int, int]]:
    """(limit, used) in bytes of every control group above this process that has a memory limit, v2 and v1.

    `used` leaves out the file pages that the kernel takes back before it refuses anything.
    """
    found = []
    for folder in _own_groups(root, own):
        limit = _first_number(folder, "memory.max", "memory.limit_in_bytes")
        used = _first_number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and limit < _NO_LIMIT and used is not None:
            found.append((limit, max(0, used - _reclaimable(folder))))
    return found


def _own_groups(root: Path, own: Path) -> Iterator[Path]:
    """Its group's folder and all above it. In a container the group's path is often not there, but its root is."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    seen: set[Path] = set()
    for line in [*lines, "0::/", "0:memory:/"]:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        group = top / path.strip("/")
        for folder in [group, *group.parents]:
            if folder not in seen and (folder == top or top in folder.parents):
                seen.add(folder)
                yield folder


def _first_number(folder: Path, *names: str) -> int | None:
    for name in names:
        try:
            text = (folder / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            return int(text)
    return None


def _reclaimable(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    values = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(values.get("total_inactive_file", values.get("inactive_file", "0")))


def _total_bytes() -> int:
    if sys.platform == "win32":
        return _windows_memory()[0]
    return _meminfo("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _available_bytes() -> int:
    if sys.platform == "win32":
        return _windows_memory()[1]
    available = _meminfo("MemAvailable")
    if available is None and sys.platform == "darwin":
        available = parse_vm_stat(subprocess.run(["vm_stat"], capture_output=True, text=True, check=False).stdout)
    return _total_bytes() if available is None else available


def _meminfo(key: str) -> int | None:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    match = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * KIB if match else None


def parse_vm_stat(text: str) -> int | None:
    """Free, inactive and speculative pages of macOS' `vm_stat`, in bytes; None if it says nothing of them."""
    size = re.search(r"page size of (\d+) bytes", text)
    pages = re.findall(r"^Pages (?:free|inactive|speculative):\s+(\d+)", text, re.MULTILINE)
    return int(size[1]) * sum(map(int, pages)) if size and pages else None


def _windows_memory() -> tuple[int, int]:
    """Physical bytes: all, and available."""
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ulong), ("load", ctypes.c_ulong),
                    *((name, ctypes.c_ulonglong) for name in ("total", "available", "total_page", "available_page",
                                                              "total_virtual", "available_virtual", "extended")))

    status = Status(length=ctypes.sizeof(Status))
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return status.total, status.available
