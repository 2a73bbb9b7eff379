"""How far a process's resident memory grows, watched by a light thread."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from memfit.core.units import KIB
from memfit.launch.limits import process_memory


class ResidentSampler:
    """Watches resident memory (RssAnon + RssShmem) of a process while it is entered.

    >>> with ResidentSampler() as sampler:
    ...     sampler.baseline()          # warm: imports and thread pools done
    ...     train()
    >>> sampler.growth_bytes

    A look takes some 30 microseconds. Under the settled allocator memory is not given back, so nothing between two
    looks is missed; under another one a peak shorter than the period can be. The kernel's own counters may lag by
    some hundred KiB. Without /proc the process's highest resident size stands in, mapped files included.
    """

    def __init__(self, pid: int | None = None, period_s: float = 0.005) -> None:
        self._pid = pid
        self._period_s = period_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._baseline_bytes = 0
        self._peak_bytes = 0

    def __enter__(self) -> ResidentSampler:
        self.baseline()
        self._thread = threading.Thread(target=self._watch, name="memfit-resident", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 where: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._look()

    def baseline(self) -> int:
        """Growth counts from here on; returns the resident bytes of now."""
        now = resident_bytes(self._pid)
        self._baseline_bytes = self._peak_bytes = now
        return now

    @property
    def peak_bytes(self) -> int:
        """Highest resident size seen since the baseline."""
        self._look()
        return self._peak_bytes

    @property
    def growth_bytes(self) -> int:
        """Highest growth above the baseline so far."""
        return max(0, self.peak_bytes - self._baseline_bytes)

    def _watch(self) -> None:
        while not self._over.wait(self._period_s):
            self._look()

    def _look(self) -> None:
        self._peak_bytes = max(self._peak_bytes, resident_bytes(self._pid))


def resident_bytes(pid: int | None = None) -> int:
    """Resident bytes of `pid` (default: this process) without mapped files; 0 if it is gone or cannot be known."""
    memory = process_memory(pid)
    if memory is not None:
        return memory.resident_bytes
    return _highest_resident_bytes() if pid is None else 0


def _highest_resident_bytes() -> int:
    try:
        import resource
    except ImportError:  # Windows
        return 0
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return highest if sys.platform == "darwin" else highest * KIB
