"""What is free now: on the card, or in this machine within its container's limit."""

from __future__ import annotations

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.hardware.host import free_host_bytes


def free_bytes(device: Device) -> tuple[int, str]:
    """Free bytes and where the figure comes from. Raises UsageError for a device that is not here."""
    if device.kind == "cpu":
        return free_host_bytes(), "memory available on this machine, within its container's limit"
    raise UsageError(f"{device.name} is not in this machine, so what is free on it is not known",
                     f"give --budget, such as --budget {device.capacity_bytes}")
