"""`memfit devices`: this machine's devices and the catalogue of cards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memfit.core.device import Device
from memfit.hardware import all_devices
from memfit.report.terminal import MOST_COLUMNS, to_text


def run(width: int | None = None) -> tuple[int, dict[str, Any], str]:
    """(exit code, `memfit.devices/1`, text of at most 100 columns). Raises UsageError for a user's file of cards that
    is not in order."""
    devices = all_devices()
    shown = [replace(one, title=_told(one)) for one in devices]
    return 0, document(devices), to_text(shown, min(width or MOST_COLUMNS, MOST_COLUMNS))


def document(devices: list[Device]) -> dict[str, Any]:
    """`memfit.devices/1`: rates in operations per second by dtype, `link` to the host; null where there is none."""
    return {"schema": "memfit.devices/1", "devices": [_entry(one) for one in devices]}


def _told(device: Device) -> str:
    """A card's name says what it is; the columns are few."""
    if device.name == "cpu":
        return "this machine"
    return device.title if device.name == "cuda" else ""


def _entry(device: Device) -> dict[str, Any]:
    return {
        "name": device.name, "title": device.title, "kind": device.kind, "capacity_bytes": device.capacity_bytes,
        "compute_capability": None if device.compute_capability is None else list(device.compute_capability),
        "multiprocessors": device.multiprocessors, "bandwidth_bytes_per_s": device.bandwidth,
        "rates": dict(device.rates), "link_bytes_per_s": device.link, "overhead_s": device.overhead_s,
        "sources": dict(device.sources)}
