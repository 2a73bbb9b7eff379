"""Ctrl-C that ends a run between two steps: the first asks, the second does not wait."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class InterruptFlag:
    """While entered, SIGINT (and SIGTERM) sets `.set` instead of raising; a second one raises KeyboardInterrupt.

    Only the main thread can take signals; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self.set = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> InterruptFlag:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.set:
            raise KeyboardInterrupt
        self.set = True
