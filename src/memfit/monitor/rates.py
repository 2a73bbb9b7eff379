"""This machine's rates, measured once and kept: what planning on `cpu` turns operations and bytes into seconds with."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from memfit.core.errors import UsageError
from memfit.core.files import write_atomic

_SIDE = 768  # matrices of this side fill the cores' caches as a layer's do
_COPY_BYTES = 64 * 2**20  # beyond the last-level cache
_REPEAT = 3


def rates_path() -> Path:
    """Where the rates of this processor, its thread count and this torch are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = f"{platform.machine()}-{processor_name()}-{torch.get_num_threads()}t-torch{torch.__version__}"
    return cache / "memfit" / f"rates-{_slug(key)}.json"


def machine_rates(*, again: bool = False) -> dict[str, Any]:
    """`{rates{float32, bfloat16}, bandwidth, overhead_s, ...}`, from the kept file or measured now (under 2 s).

    A folder that cannot be written to is no error: the rates are measured anew each time.
    """
    path = rates_path()
    if not again:
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError):
            pass
    measured = measure_rates()
    with suppress(UsageError):
        write_atomic(path, json.dumps(measured, indent=2) + "\n")
    return measured


def measure_rates() -> dict[str, Any]:
    """Measure now: floating-point operations per second by dtype, bytes per second of main memory (read and written),
    seconds per small operator call."""
    began = time.perf_counter()
    with torch.no_grad():
        rates = {"float32": _matmul_rate(torch.float32), "bfloat16": _matmul_rate(torch.bfloat16)}
        bandwidth, overhead_s = _copy_rate(), _call_time()
    return {
        "schema": "memfit.rates/1", "processor": processor_name(), "threads": torch.get_num_threads(),
        "torch": torch.__version__, "rates": rates, "bandwidth": bandwidth, "overhead_s": overhead_s,
        "took_s": time.perf_counter() - began,
    }


def processor_name() -> str:
    """The processor's own name, or the machine type."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _matmul_rate(dtype: torch.dtype) -> float:
    left, right = torch.ones(_SIDE, _SIDE, dtype=dtype), torch.ones(_SIDE, _SIDE, dtype=dtype)
    return 2 * _SIDE**3 / _fastest(lambda: left @ right)


def _copy_rate() -> float:
    source, target = torch.zeros(_COPY_BYTES // 4), torch.zeros(_COPY_BYTES // 4)
    return 2 * _COPY_BYTES / _fastest(lambda: target.copy_(source))


def _call_time(calls: int = 500) -> float:
    small = torch.ones(8)
    times = []
    for _ in range(_REPEAT):
        began = time.perf_counter()
        for _ in range(calls):
            small.add(1.0)
        times.append((time.perf_counter() - began) / calls)
    return statistics.median(times)


def _fastest(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few runs after a warm one: other processes only ever slow a run down."""
    work()
    times = []
    for _ in range(_REPEAT):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return max(min(times), 1e-9)


def _slug(text: str) -> str:
    return "".join(sign if sign.isalnum() else "-" for sign in text.lower())
