"""How a child process of ours tells its parent what happens: one JSON document a line, on a pipe of its own, so that
stdout stays the user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any

CHANNEL = "MEMFIT_EVENTS_FD"

_lock = threading.Lock()
_connected: list[tuple[int, int]] = []  # (process id, file descriptor): a forked process is no longer the worker


def connect() -> bool:
    """Take the channel from the environment, so that no grandchild mistakes another file for it. False: none there."""
    number = os.environ.pop(CHANNEL, "")
    if not number.isdecimal():
        return False
    try:
        descriptor = _received(int(number))
        os.set_inheritable(descriptor, False)
    except OSError:
        return False
    _connected[:] = [(os.getpid(), descriptor)]
    return True


def emit(kind: str, **payload: Any) -> bool:
    """Tell the parent `{"kind": kind, **payload}`; payload is JSON types. False outside a worker: nothing is told."""
    if CHANNEL in os.environ:
        connect()
    if not _connected or _connected[0][0] != os.getpid():
        return False
    line = json.dumps({"kind": kind, **payload}).encode() + b"\n"
    with _lock:
        try:
            _write_all(_connected[0][1], line)
        except OSError:  # the parent is gone, and this process is about to follow
            return False
    return True


def passable(descriptor: int) -> int:
    """The number by which a child finds the open `descriptor`: itself, on Windows its handle."""
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.get_osfhandle(descriptor)
    return descriptor


def inheritance(descriptor: int) -> dict[str, Any]:
    """Keyword arguments of `subprocess.Popen` with which a child in a session of its own inherits `descriptor`."""
    if sys.platform == "win32":
        handle = passable(descriptor)
        os.set_handle_inheritable(handle, True)
        return {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
    return {"pass_fds": (descriptor,), "start_new_session": True}


def parse(line: bytes) -> dict[str, Any] | None:
    """One line as an event, or None if it is not one (a worker killed while it wrote)."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("kind"), str) else None


def _received(number: int) -> int:
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.open_osfhandle(number, os.O_WRONLY)
    return number


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data):]
