"""Telling why a process died."""

from __future__ import annotations

import re
import signal

_OUT_OF_MEMORY = re.compile(
    r"MemoryError"
    r"|could not create a primitive(?! desc)|could not execute a primitive|could not create a memory"  # oneDNN
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|std::bad_alloc|[Cc]annot allocate memory|[Uu]nable to allocate"
    r"|out of memory|OutOfMemoryError|Out of memory"
    r"|Thread creation failed|can't start new thread"  # a thread's stack counts against the limit, too
)
_ENDED = {"SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT"}


def looks_out_of_memory(text: str, returncode: int | None = None, *, limited: bool = False) -> bool:
    """Whether `text` (a message or the end of stderr) and the exit code tell of memory that was refused.

    A kill that nobody asked for is the system's out-of-memory killer. Under a limit (`limited`) a crash without words
    counts as well: C code seldom looks at what malloc returns.
    """
    name = signal_name(returncode)
    if _OUT_OF_MEMORY.search(text) or name == "SIGKILL":
        return True
    return limited and name in _ENDED


def signal_name(returncode: int | None) -> str | None:
    """`SIGKILL` for -9, and for a shell's 137; None for a process that ended by itself."""
    if returncode is None or 0 <= returncode <= 128:
        return None
    try:
        return signal.Signals(-returncode if returncode < 0 else returncode - 128).name
    except ValueError:
        return None


def exit_code(returncode: int) -> int:
    """What a shell would say: the code itself, or 128 + n for a death by signal n."""
    return 128 - returncode if returncode < 0 else returncode
