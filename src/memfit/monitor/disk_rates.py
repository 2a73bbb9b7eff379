"""How fast mapped files are on this machine's disk, measured once and kept: what planning prices memory on disk with."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from memfit.core.device import Disk
from memfit.core.errors import UsageError
from memfit.core.files import write_atomic
from memfit.core.units import MIB
from memfit.hardware.disks import offload_folder, why_unsuitable
from memfit.hardware.host import capacity_host_bytes
from memfit.jobs import mapped

_SCHEMA = "memfit.disk/1"
_BYTES = 64 * MIB
_PAGE_OUT = 21  # Linux 5.4: pages are given up; elsewhere nothing happens, and the disk seems as fast as its cache
_DIRTY_SHARE = 0.1  # of memory: Linux writes back at once what is changed beyond (vm.dirty_background_ratio)


def disk_here(folder: str = "") -> Disk | None:
    """The disk of the folder (empty: where temporary files go), from the kept file or measured now in about a second; None
    where memory cannot be moved to it."""
    where = offload_folder(folder)
    if why_unsuitable(where) is not None:
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = cache / "memfit" / f"disk-{where.stat().st_dev}.json"
    found = _kept(path)
    if found is None:
        try:
            found = measure_disk(where)
        except UsageError:  # it is full
            return None
        with suppress(UsageError):
            write_atomic(path, json.dumps(found) + "\n")
    return Disk(found["read"], found["write"], found["rewrite"], int(capacity_host_bytes() * _DIRTY_SHARE))


def measure_disk(folder: Path) -> dict[str, Any]:
    """Bytes a second: `read` and `write` between memory and disk, and `rewrite`, changing pages that the system has written
    back and still holds; a copy in memory taken off. Raises UsageError if the disk is full."""
    pages = mapped.mapped_bytes(_BYTES, folder)
    values = torch.ones(_BYTES, dtype=torch.uint8)
    pages.copy_(values)
    write_s = _seconds(lambda: mapped.write_back(pages.data_ptr(), _BYTES))
    again_s = _seconds(lambda: pages.copy_(values))
    copy_s = _seconds(lambda: pages.copy_(values))
    mapped.write_back(pages.data_ptr(), _BYTES)
    mapped.advise(pages.data_ptr(), _BYTES, _PAGE_OUT)
    read_s = _seconds(lambda: values.copy_(pages))
    return {"schema": _SCHEMA, "write": _BYTES / write_s, "read": _BYTES / max(read_s - copy_s, copy_s),
            "rewrite": _BYTES / max(again_s - copy_s, copy_s / 4)}


def _seconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return max(time.perf_counter() - began, 1e-9)


def _kept(path: Path) -> dict[str, Any] | None:
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and kept.get("schema") == _SCHEMA else None
