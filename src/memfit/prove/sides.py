"""Running the sides of a proof: alone, or two at the same time that take turns where speed is measured."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from memfit.launch import MEASURING, WorkerResult, run_worker
from memfit.prove.turns import Referee, Rounds

WORKER = "memfit.prove.worker"

OnEvent = Callable[[str, dict[str, Any]], None]
"""`on_event(side, event)`: what a side tells, such as `warm`, `step`, `measured`, `timed`."""


def run_side(name: str, spec: Mapping[str, Any], on_event: OnEvent) -> WorkerResult:
    """One worker, waited for. With `exact` in its spec it allocates exactly: slower, and as small as it can be."""
    return run_worker(WORKER, spec, on_event=lambda event: on_event(name, event), environment=MEASURING,
                      limited=bool(spec.get("enforce")), exact=bool(spec.get("exact")), show_output=False)


def run_together(sides: Mapping[str, Mapping[str, Any]], folder: Path, on_event: OnEvent) -> dict[str, WorkerResult]:
    """Two workers at once, that take turns when they are timed. Ctrl-C ends both and is raised again."""
    first, second = sides
    referee = Referee(folder, (first, second), Rounds())
    pids: set[int] = set()
    lock = threading.Lock()
    results: dict[str, WorkerResult] = {}
    failures: list[BaseException] = []

    def heard(name: str, event: dict[str, Any]) -> None:
        if event["kind"] == "warm":
            pids.add(event["pid"])
        referee.on_event(name, event)
        with lock:
            on_event(name, event)

    def run(name: str) -> None:
        try:
            results[name] = run_side(name, {**sides[name], "turn": str(referee.paths[name])}, heard)
        except BaseException as error:
            failures.append(error)
        finally:
            referee.ended(name)

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in sides]
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            threads[0 if threads[0].is_alive() else 1].join(0.2)
    except BaseException:
        _end(pids)
        raise
    finally:
        referee.close()
    if failures:
        raise failures[0]
    return results


def _end(pids: set[int]) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
