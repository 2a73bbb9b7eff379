"""No orphans: a child that ends when its parent does."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Called in a child: end it when process `parent` ends. By the kernel on Linux, else by looking each second."""
    if not _ask_kernel():
        threading.Thread(target=_watch, args=(parent,), name="memfit-parent", daemon=True).start()
    if os.name == "posix" and os.getppid() != parent and not _alive(parent):  # it ended before we asked
        os._exit(1)


def death_with_parent() -> Callable[[], None] | None:
    """For `subprocess`' `preexec_fn`: the same for a program that is not ours. None where the kernel cannot."""
    prctl = _prctl()
    if prctl is None:
        return None

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    return ask


def _ask_kernel() -> bool:
    prctl = _prctl()
    return prctl is not None and prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0


def _prctl() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    try:
        return ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # not ours to signal, so it is there
        return True
    return True


def _watch(parent: int) -> None:
    while os.name == "posix" and os.getppid() == parent:
        time.sleep(1.0)
    if os.name == "posix":
        os._exit(1)
