"""What a process holds, and a limit on it that the operating system enforces.

The limit is RLIMIT_DATA: it counts private writable memory (`VmData`), which is where tensors live, and a refused
allocation is an error in the process, not its death by a signal.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from memfit.core.errors import UsageError
from memfit.core.units import KIB, MIB

_FIELDS = {"VmData": "data_bytes", "RssAnon": "anonymous_bytes", "RssShmem": "shared_bytes", "RssFile": "file_bytes",
           "VmHWM": "peak_resident_bytes"}


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of one process, as Linux counts them in /proc/PID/status."""

    data_bytes: int = 0  # private writable address space; what RLIMIT_DATA bounds
    anonymous_bytes: int = 0  # resident, of the heap and anonymous mappings
    shared_bytes: int = 0  # resident, of shared memory (DataLoader workers' tensors)
    file_bytes: int = 0  # resident, of mapped files; the kernel takes it back when it needs to
    peak_resident_bytes: int = 0  # highest resident size so far, mapped files included

    @property
    def resident_bytes(self) -> int:
        """What the process itself is answerable for: anonymous and shared, without mapped files."""
        return self.anonymous_bytes + self.shared_bytes


def parse_status(text: str) -> ProcessMemory:
    """`text` is the content of /proc/PID/status. A process that is ending has no such lines: all zero."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key in _FIELDS:
            found[_FIELDS[key]] = int(value.split()[0]) * KIB
    return ProcessMemory(**found)


def process_memory(pid: int | None = None) -> ProcessMemory | None:
    """Memory of `pid` (default: this process); None where there is no /proc or no such process."""
    try:
        with open(f"/proc/{pid or 'self'}/status") as file:
            return parse_status(file.read())
    except (OSError, UnicodeDecodeError):
        return None


def can_enforce() -> bool:
    """Whether RLIMIT_DATA bounds all private memory here: Linux 4.7 or newer with its /proc. macOS, Windows: no."""
    if sys.platform != "linux":
        return False
    memory = process_memory()
    return memory is not None and memory.data_bytes > 0 and _kernel() >= (4, 7)


def allowance(budget_bytes: int) -> int:
    """Bytes that a process may grow by when the budget of its tensors is `budget_bytes`: 1.10 x budget + 64 MiB."""
    return budget_bytes + budget_bytes // 10 + 64 * MIB


def set_data_limit(limit_bytes: int) -> None:
    """From now on the system refuses private memory of this process above `limit_bytes` in all (soft RLIMIT_DATA).

    Raises UsageError where that cannot be done: `can_enforce()` tells before.
    """
    if not can_enforce():
        raise UsageError("this system cannot enforce a limit on memory", "leave out --enforce, or run on Linux")
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY and limit_bytes > hard:
        limit_bytes = hard
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))


def limit_growth(budget_bytes: int) -> int:
    """Limit this process to `allowance(budget_bytes)` above what it holds now; returns the limit in bytes."""
    memory = process_memory()
    limit_bytes = (memory.data_bytes if memory else 0) + allowance(budget_bytes)
    set_data_limit(limit_bytes)
    return limit_bytes


def lift_data_limit() -> None:
    """Undo `set_data_limit`, as far as the hard limit allows; nothing where no limit can be set."""
    if not can_enforce():
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _kernel() -> tuple[int, int]:
    major, _, rest = os.uname().release.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else (0, 0)
