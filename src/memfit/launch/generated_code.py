"""Machine code that libraries generate at run time, kept out of what a data limit counts.

oneDNN maps megabytes for each kernel that it generates and fills kilobytes (172 MiB mapped and under 10 MiB used for one
step of MobileNetV3 in bf16). The maps are writable, so `RLIMIT_DATA` counts all of them as data. Once made, code is only
read and run: made read-only it is no data, and what it really uses stays in the resident bytes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

_READ_AND_RUN = 1 | 4  # PROT_READ | PROT_EXEC
Range = tuple[int, int]


class GeneratedCode:
    """Code that appears after this object is made; what was there before may be written to again."""

    def __init__(self) -> None:
        self._before = list(_writable_code())

    def make_read_only(self) -> int:
        """Take the right to write from all code that has appeared; its bytes. No code may be in the making: call it
        between operators, in the thread that runs them."""
        changed = 0
        for start, stop in _writable_code():
            for first, last in without((start, stop), self._before):
                if _libc().mprotect(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _READ_AND_RUN) == 0:
                    changed += last - first
        return changed


def without(whole: Range, parts: list[Range]) -> Iterator[Range]:
    """What is left of a range without others."""
    start, stop = whole
    for first, last in sorted(parts):
        if last <= start or first >= stop:
            continue
        if first > start:
            yield start, first
        start = max(start, last)
    if start < stop:
        yield start, stop


def _writable_code() -> Iterator[Range]:
    """Address ranges that can be both written and run, and belong to no file. None where the system does not tell."""
    if sys.platform != "linux":
        return
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        addresses, rights, *rest = line.split()
        if rights == "rwxp" and len(rest) == 3:
            first, _, last = addresses.partition("-")
            yield int(first, 16), int(last, 16)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
