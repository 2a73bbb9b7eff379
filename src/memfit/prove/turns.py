"""Two workers that take turns, so that what is timed is timed side by side, and by one process at a time."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_GO, _STOP = b"g", b"s"


def can_take_turns() -> bool:
    """Named pipes carry the turns."""
    return hasattr(os, "mkfifo")


@dataclass(frozen=True)
class Rounds:
    """How often each side is timed."""

    least: int = 3
    most: int = 15
    enough_s: float = 20.0


class Referee:
    """In the parent: gives each worker in turn a go once both have said `at_line`; each go is answered by a `timed`
    event. It ends after `rounds.most`, or as soon as `rounds.enough_s` have passed and `rounds.least` are done. A
    worker that ends early sets the other free."""

    def __init__(self, folder: Path, names: tuple[str, str], rounds: Rounds) -> None:
        self._names = names
        self._rounds = rounds
        self._done = dict.fromkeys(names, 0)
        self._began = 0.0
        self._waiting: set[str] = set()
        self._over = False
        self._lock = threading.Lock()
        self.paths = {name: folder / f"turn-{name}" for name in names}
        self._pipes: dict[str, int] = {}
        for name, path in self.paths.items():
            path.unlink(missing_ok=True)
            os.mkfifo(path)
            self._pipes[name] = os.open(path, os.O_RDWR)  # open for both, so that neither side waits for the other

    def on_event(self, name: str, event: dict[str, Any]) -> None:
        with self._lock:
            if event["kind"] == "at_line":
                self._arrived(name)
            elif event["kind"] == "timed" and not self._over:
                self._done[name] += 1
                other = next(one for one in self._names if one != name)
                if self._done[other] == self._done[name] and self._enough():
                    self._finish()
                else:
                    self._send(other, _GO)

    def ended(self, name: str) -> None:
        """Worker `name` has ended: nobody waits for it any longer."""
        with self._lock:
            if not self._over:
                self._finish()

    def close(self) -> None:
        for pipe in self._pipes.values():
            with suppress(OSError):
                os.close(pipe)
        self._pipes.clear()

    def _arrived(self, name: str) -> None:
        self._waiting.add(name)
        if self._over:
            self._send(name, _STOP)
        elif len(self._waiting) == len(self._names):
            self._began = time.monotonic()
            self._send(self._names[0], _GO)

    def _enough(self) -> bool:
        """Asked when both have done the same number."""
        done = min(self._done.values())
        late = time.monotonic() - self._began > self._rounds.enough_s
        return done >= self._rounds.most or (late and done >= self._rounds.least)

    def _finish(self) -> None:
        self._over = True
        for name in self._names:
            self._send(name, _STOP)

    def _send(self, name: str, sign: bytes) -> None:
        if name in self._pipes:
            with suppress(OSError):
                os.write(self._pipes[name], sign)


class Turn:
    """In a worker: `next()` waits for a go; False when the rounds are over."""

    def __init__(self, path: str) -> None:
        self._pipe = os.open(path, os.O_RDONLY)

    def next(self) -> bool:
        return os.read(self._pipe, 1) == _GO
