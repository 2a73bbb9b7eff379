"""The catalogue of cards and facts of this machine. No torch."""

from __future__ import annotations

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.hardware.cpu import cpu_device

__all__ = ["cpu_device", "find_device"]


def find_device(name: str | None) -> Device:
    """The device of that name (None: the CPU). Raises UsageError for an unknown one."""
    if name in (None, "cpu"):
        return cpu_device()
    raise UsageError(f"unknown device {name!r}", "use cpu")
