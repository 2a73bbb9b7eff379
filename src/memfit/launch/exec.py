"""`memfit exec -- python train.py`: any program, with the allocator settled: resident memory follows its tensors."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from memfit.core.errors import UsageError
from memfit.core.units import KIB
from memfit.launch.allocator import allocator_of, settled_environment, settling_note
from memfit.launch.deaths import exit_code
from memfit.launch.limits import process_memory
from memfit.launch.together import death_with_parent

_FIRST_S, _PERIOD_S = 0.001, 0.02
_LOADING_LOOKS = 50  # in its first second a child may still be a copy of us, or a launcher
_STDERR = 2


def run_exec(argv: Sequence[str], *, json: bool = False) -> tuple[int, dict[str, Any]]:
    """Run `argv` with the allocator settled; its exit code (128 + n for a death by signal n) and `memfit.exec/1`.

    The child keeps this process's stdin, stdout and stderr and stays in its process group, as if it had been started
    without us; with `json` its stdout goes to stderr. `peak_rss_bytes` is the resident peak of the largest process,
    null where that is not known. Raises UsageError where there is no such program.
    """
    command = [str(part) for part in argv]
    notes = [note for note in (settling_note(),) if note]
    began = time.monotonic()
    child = _start(command, json)
    earlier_bytes = _largest_child_bytes()
    with _passing_signals_on(child):
        watched = _watch(child)
    peak_bytes = _peak(watched.peak_bytes, earlier_bytes)
    return exit_code(child.returncode), {
        "schema": "memfit.exec/1", "command": command, "returncode": exit_code(child.returncode),
        "allocator": watched.allocator, "peak_rss_bytes": peak_bytes, "took_s": time.monotonic() - began,
        "notes": notes}


class _Watched:
    """What was seen of a child while it ran."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.allocator = "unknown"

    def look(self, pid: int) -> None:
        memory = process_memory(pid)
        if memory is not None:
            self.peak_bytes = max(self.peak_bytes, memory.peak_resident_bytes)

    def look_for_allocator(self, pid: int) -> None:
        seen = allocator_of(pid)
        if seen != "system":  # the child has ended, or is not loaded yet
            self.allocator = seen


def _watch(child: subprocess.Popen[bytes]) -> _Watched:
    watched, looks = _Watched(), 0
    while True:
        watched.look(child.pid)
        if looks < _LOADING_LOOKS:
            watched.look_for_allocator(child.pid)
        looks += 1
        try:
            child.wait(timeout=min(_PERIOD_S, _FIRST_S * looks))
        except subprocess.TimeoutExpired:
            continue
        return watched


def _start(command: list[str], json: bool) -> subprocess.Popen[bytes]:
    if not command:
        raise UsageError("there is no program to run", "memfit exec -- python train.py")
    if shutil.which(command[0]) is None:
        raise UsageError(f"there is no program {command[0]!r}", "memfit exec -- python train.py")
    sys.stdout.flush()
    try:
        return subprocess.Popen(command, env=settled_environment(), stdout=_STDERR if json else None,
                                preexec_fn=death_with_parent())
    except OSError as error:
        raise UsageError(f"cannot run {command[0]!r}: {error.strerror or error}") from None


def _peak(seen_bytes: int, earlier_bytes: int) -> int | None:
    """The kernel's own figure covers what happened between two looks, but it is that of the largest child so far, and
    starts from our size at the fork."""
    children, own = _largest_child_bytes(), _own_peak_bytes()
    return max(children, seen_bytes) if children > max(own, earlier_bytes) else seen_bytes or None


def _largest_child_bytes() -> int:
    return _highest_bytes("RUSAGE_CHILDREN")


def _own_peak_bytes() -> int:
    return _highest_bytes("RUSAGE_SELF")


def _highest_bytes(who: str) -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else KIB
    return resource.getrusage(getattr(resource, who)).ru_maxrss * unit


@contextmanager
def _passing_signals_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """SIGTERM and SIGHUP go to the child; so does Ctrl-C, unless the terminal has sent it there already."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, frame: object) -> None:
        if number == signal.SIGINT and _has_terminal():
            return
        with suppress(ProcessLookupError):
            child.send_signal(number)

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_terminal() -> bool:
    """Whether we are the foreground of a terminal: it sends Ctrl-C to the whole process group."""
    if os.name != "posix":
        return True
    for descriptor in (0, 1, 2):
        with suppress(OSError):
            return os.tcgetpgrp(descriptor) == os.getpgrp()
    return False
