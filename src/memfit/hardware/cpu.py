"""This machine's processor and memory as a target device."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

from memfit.core.device import Device
from memfit.hardware.host import capacity_host_bytes
from memfit.hardware.processor import processor

_OVERHEAD_S = 2e-6  # one small operator, until measured
_EXPECTED = "expected of the processor's vector units, cores and clock; not measured yet"


def cpu_device() -> Device:
    """`cpu`: capacity within the container's limit; rates as measured here before, else as expected."""
    here = processor()
    measured = kept_rates()
    source = "measured on this machine" if measured else _EXPECTED
    known = measured or {"rates": here.rates(), "bandwidth": here.bandwidth(), "overhead_s": _OVERHEAD_S}
    return Device(
        name="cpu", kind="cpu", capacity_bytes=capacity_host_bytes(), rates=known["rates"],
        bandwidth=known["bandwidth"], overhead_s=known["overhead_s"],
        title=f"{here.name} ({here.cores} cores)",
        sources={"capacity_bytes": "the system, within the container's limit", "rates": source, "bandwidth": source,
                 "overhead_s": source})


def rates_folder() -> Path:
    """Where measured rates are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memfit"


def kept_rates() -> dict[str, Any] | None:
    """`{rates, bandwidth, overhead_s}` that was measured for this processor, its threads and the installed PyTorch;
    None where nothing fits. Measuring takes PyTorch, and is done elsewhere."""
    try:
        torch = metadata.version("torch").partition("+")[0]
        files = sorted(rates_folder().glob("rates-*.json"))
    except (metadata.PackageNotFoundError, OSError, RuntimeError):
        return None
    here = processor()
    for path in files:
        kept = _read(path)
        if kept is not None and (kept.get("processor"), kept.get("threads")) == (here.name, here.threads) \
                and str(kept.get("torch")).partition("+")[0] == torch:
            return {key: kept[key] for key in ("rates", "bandwidth", "overhead_s")}
    return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(kept, dict) and {"rates", "bandwidth", "overhead_s"} <= set(kept)
    return kept if whole else None
