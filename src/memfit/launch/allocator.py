"""Settling the C library's allocator, so that a process on a CPU is as large as its tensors.

The default heap keeps freed blocks, so checkpointing halves the tensors and the process stays as large as before.
mimalloc, preloaded, reuses every freed block and costs no time. It has to be there before the process starts, hence
an environment for a child. mimalloc comes in the wheel `cmeel-mimalloc`, which is never imported here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "cmeel-mimalloc"
INSTALL_NOTE = 'the allocator is not settled as well as it can be: pip install "memfit[cpu]" brings mimalloc'
UNSUPPORTED_NOTE = "the allocator cannot be settled on this system: resident memory can be far above the tensors"

# Never purge: a freed block is reused, not given back and faulted in again. Commit lazily: an arena committed eagerly
# is a writable gigabyte, counted in VmData before a limit is set above it, so that the limit would have a hidden
# gigabyte. Pages that empty are given up at once, for other sizes to use.
_MIMALLOC = {"MIMALLOC_PURGE_DELAY": "-1", "MIMALLOC_ARENA_EAGER_COMMIT": "0"}
# Without mimalloc, and where every byte counts: blocks from 1 MiB on are mapped and unmapped one by one. Resident is
# the tensors then (1.00 to 1.02 of them), at a price in page faults, which huge pages make about four times smaller.
_EXACT = {"MALLOC_MMAP_THRESHOLD_": "1048576"}
_HUGE_PAGES = "glibc.malloc.hugetlb=1"


def find_mimalloc() -> Path | None:
    """The shared library in the installed wheel, found without importing it; None where there is none (or no use)."""
    if sys.platform != "linux":
        return None
    return next((one for one in _candidates() if one.is_file()), None)


def settled_environment(base: Mapping[str, str] | None = None, *, exact: bool = False) -> dict[str, str]:
    """`base` (default: this process's environment) for a child whose allocator is settled.

    With mimalloc a process needs 1.05 to 1.25 of its tensors (1.4 was seen), because blocks of other sizes do not
    fit the gaps. `exact` has glibc map large blocks one by one instead: 1.00 to 1.02, but slower. That is also what
    happens where mimalloc is not installed; elsewhere than on Linux nothing changes. Settings that the user has made
    for the same allocator stay. Other preloaded libraries stay, behind mimalloc.
    """
    environment = dict(os.environ if base is None else base)
    if sys.platform != "linux":
        return environment
    library = find_mimalloc()
    if library is None or exact:
        return _with_exact_heap(environment)
    environment["LD_PRELOAD"] = _preload(str(library), environment.get("LD_PRELOAD", ""))
    return {**_MIMALLOC, **environment}


def settling_note() -> str:
    """What a user should know about the allocator of a child started here; empty if all is well."""
    if sys.platform != "linux":
        return UNSUPPORTED_NOTE
    return "" if find_mimalloc() else INSTALL_NOTE


def allocator_here() -> str:
    """The allocator of this process; see `allocator_of`."""
    return allocator_of("self")


def allocator_of(pid: int | str) -> str:
    """Which allocator a process really has mapped: `mimalloc`, `jemalloc`, `tcmalloc`, `glibc`, or `system`.

    `glibc, mmap threshold N` where the threshold is fixed. Read from /proc; `system` where that cannot be read.
    """
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return "system"
    for name in ("mimalloc", "jemalloc", "tcmalloc"):
        if f"/lib{name}" in mapped:
            return name
    return _glibc(pid) if "/libc.so.6" in mapped or "/libc-2" in mapped else "system"


def _glibc(pid: int | str) -> str:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        environment = []
    for entry in environment:
        key, _, value = entry.partition(b"=")
        if key == b"MALLOC_MMAP_THRESHOLD_":
            return f"glibc, mmap threshold {value.decode(errors='replace')}"
    return "glibc"


def _candidates() -> list[Path]:
    names = ("libmimalloc.so", "libmimalloc.so.3", "libmimalloc.so.2")
    folders = [*_installed_folder(), *(Path(entry or ".") / "cmeel.prefix" / "lib" for entry in sys.path)]
    return [folder.absolute() / name for folder in folders for name in names]


def _installed_folder() -> list[Path]:
    try:
        return [Path(str(metadata.distribution(DISTRIBUTION).locate_file("cmeel.prefix/lib")))]
    except metadata.PackageNotFoundError:
        return []


def _with_exact_heap(environment: dict[str, str]) -> dict[str, str]:
    others = [one for one in environment.get("LD_PRELOAD", "").replace(":", " ").split() if "libmimalloc" not in one]
    environment["LD_PRELOAD"] = ":".join(others)
    if not others:
        del environment["LD_PRELOAD"]
    tunables = environment.get("GLIBC_TUNABLES", "")
    if "glibc.malloc.hugetlb" not in tunables:
        environment["GLIBC_TUNABLES"] = f"{tunables}:{_HUGE_PAGES}" if tunables else _HUGE_PAGES
    return {**_EXACT, **environment}


def _preload(library: str, already: str) -> str:
    others = [one for one in already.replace(":", " ").split() if one != library]
    return ":".join([library, *others])
