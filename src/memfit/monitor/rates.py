"""This machine's rates, measured once and kept: what planning on `cpu` turns operations and bytes into seconds with.

Operators are timed one by one at a few sizes (`probes`), in a process with the settled allocator that runs have too: on
the default heap a large result would cost page faults that a run does not have. Seconds are those that the calling thread
was on a processor: it takes part in all work, so on a quiet machine that is the time that passes, and on a busy one it
leaves out the others.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from memfit.core.errors import MemfitError, UsageError
from memfit.core.files import write_atomic
from memfit.hardware.processor import processor
from memfit.launch import MEASURING, run_worker
from memfit.monitor.caches import reuse_rates
from memfit.monitor.overheads import call_overheads
from memfit.monitor.probes import Probe, probes, work_of

SCHEMA = "memfit.rates/3"
_WORKER = "memfit.monitor.rates_worker"
_PASSES = 2  # far apart in time: another process's work only ever slows a call down
_BUSY = 1.6  # seconds that passed for one on a processor: above that others were at work, and the rates are too low
_TRY_AGAIN_S = 3600.0  # rates of a busy machine are measured anew after this long
_CALLS_S = 0.002  # short calls are repeated in a loop that takes about this long


def rates_path() -> Path:
    """Where the rates of this processor, its thread count and this torch are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = f"{platform.machine()}-{processor().name}-{torch.get_num_threads()}t-torch{torch.__version__}"
    return cache / "memfit" / f"rates-{_slug(key)}.json"


def machine_rates(*, again: bool = False) -> dict[str, Any]:
    """`{rates{float32, bfloat16}, bandwidth, overhead_s, operators, overheads}`, from the kept file or measured now, in
    a process of its own, in about ten seconds: a terminal is told.

    Rates that were measured while the machine was busy are measured anew when they are an hour old. A folder that
    cannot be written to is no error: the rates are measured anew each time.
    """
    path = rates_path()
    if not again and (kept := _kept(path)) is not None:
        return kept
    if sys.stderr.isatty():
        print("measuring this machine's rates, once (about 15 s; minutes on a busy machine)", file=sys.stderr, flush=True)
    result = run_worker(_WORKER, {"threads": torch.get_num_threads()}, environment=MEASURING, show_output=False)
    if result.error is not None or result.result is None:
        raise result.error or MemfitError("this machine's rates could not be measured")
    with suppress(UsageError):
        write_atomic(path, json.dumps(result.result) + "\n")
    return result.result


def measure_rates() -> dict[str, Any]:
    """Measure now, in this process.

    `operators` are `[flops, bytes, seconds]` by `operator:dtype`, `overheads` seconds of host work for a call by phase,
    `streams` `[reuse distance, bytes per second]`; `rates` (operations per second), `bandwidth` (bytes per second of main
    memory, read and written) and `overhead_s` (a small call) sum them up. `busy`: others were at work meanwhile.
    """
    began, own = time.perf_counter(), time.thread_time()
    with torch.no_grad():
        operators, streams = _operators(), reuse_rates()
    overhead_s = min(seconds for _, _, seconds in operators["add:float32"])
    return {
        "schema": SCHEMA, "processor": processor().name, "threads": torch.get_num_threads(),
        "torch": torch.__version__, "rates": {dtype: _best(operators, dtype) for dtype in ("float32", "bfloat16")},
        "bandwidth": streams[-1][1],
        "overhead_s": overhead_s, "operators": operators, "overheads": call_overheads(overhead_s),
        "streams": streams,
        "busy": time.perf_counter() - began > _BUSY * (time.thread_time() - own),
        "took_s": time.perf_counter() - began,
    }


def _kept(path: Path) -> dict[str, Any] | None:
    try:
        kept = json.loads(path.read_text())
        age_s = time.time() - path.stat().st_mtime
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or kept.get("schema") != SCHEMA:
        return None
    return None if kept.get("busy") and age_s > _TRY_AGAIN_S else kept


def _operators() -> dict[str, list[list[float]]]:
    """Seconds of every probe: the least of all passes."""
    found: dict[str, dict[int, list[float]]] = {}
    for _ in range(_PASSES):
        for place, probe in enumerate(probes()):
            flops, nbytes, seconds = _timed(probe)
            one = found.setdefault(probe.key, {}).setdefault(place, [float(flops), float(nbytes), seconds])
            one[2] = min(one[2], seconds)
    return {key: list(some.values()) for key, some in found.items()}


def _timed(probe: Probe) -> tuple[int, int, float]:
    args = probe.arguments()
    began = time.thread_time()
    out = probe.func(*args, **probe.keywords)
    flops, nbytes = work_of(probe.func, args, out)
    warm_s = time.thread_time() - began
    del out
    calls = max(1, min(50, int(_CALLS_S / max(warm_s, 1e-7))))
    times = []
    for _ in range(2):
        began = time.thread_time()
        for _ in range(calls):
            probe.func(*args, **probe.keywords)
        times.append((time.thread_time() - began) / calls)
    return flops, nbytes, max(min(times), 1e-9)


def _best(operators: dict[str, list[list[float]]], dtype: str) -> float:
    return max(flops / seconds for flops, _, seconds in operators[f"mm:{dtype}"])


def _slug(text: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in text.lower())
