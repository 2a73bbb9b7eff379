"""What the main function of every worker does: read the spec, do the work, tell the parent how it went."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from memfit.core.errors import Interrupted, MemfitError, RanOutOfMemory
from memfit.launch.deaths import looks_out_of_memory
from memfit.launch.events import connect, emit
from memfit.launch.limits import lift_data_limit
from memfit.launch.quiet import quiet_imports


def worker_main(work: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> int:
    """For `sys.exit(worker_main(work))` in a worker module: `work(spec)` gives the payload of the `result` event.

    An error becomes an `error` event {code, message, advice} and that exit code; memory that was refused, by whatever
    exception, is code 4. Other exceptions leave their traceback on stderr and are code 1.
    """
    connect()
    quiet_imports()
    spec = json.loads(Path(sys.argv[1]).read_text())
    try:
        result = work(spec)
    except BaseException as error:
        lift_data_limit()  # the error holds the frames and their tensors; telling of it needs a little memory
        told = _told(error)
        emit("error", code=told.code, message=told.message, advice=told.advice)
        return told.code
    emit("result", **(result or {}))
    return 0


def _told(error: BaseException) -> MemfitError:
    if isinstance(error, MemfitError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    line = f"{type(error).__name__}: {error}"
    if looks_out_of_memory(line):
        return RanOutOfMemory(f"out of memory: {str(error).strip() or type(error).__name__}".splitlines()[0][:300],
                              "give a larger budget, or allow a lower fidelity")
    traceback.print_exception(type(error), error, error.__traceback__)
    return MemfitError(line.splitlines()[0][:300])
