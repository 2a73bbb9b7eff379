"""How much memory this machine has and has free, within its container's limit."""

from __future__ import annotations

from pathlib import Path

_NO_LIMIT = 1 << 60  # cgroup v1 writes a huge number where there is no limit


def capacity_host_bytes() -> int:
    """The machine's memory, or its container's limit where that is smaller."""
    total = _meminfo("MemTotal")
    limit = container_limit_bytes()
    return min(total, limit) if limit is not None else total


def free_host_bytes() -> int:
    """What can be taken now: memory available, or what the container's limit leaves where that is smaller."""
    available = _meminfo("MemAvailable")
    limit, used = container_limit_bytes(), _container("memory.current", "memory/memory.usage_in_bytes")
    return available if limit is None or used is None else max(0, min(available, limit - used))


def container_limit_bytes() -> int | None:
    """The container's memory limit (cgroup v2 or v1); None where there is none."""
    limit = _container("memory.max", "memory/memory.limit_in_bytes")
    return limit if limit is not None and limit < _NO_LIMIT else None


def _container(v2: str, v1: str) -> int | None:
    for name in (v2, v1):
        try:
            text = (Path("/sys/fs/cgroup") / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            return int(text)
    return None


def _meminfo(key: str) -> int:
    """A line of /proc/meminfo in bytes; elsewhere psutil's figure, or all physical pages."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
