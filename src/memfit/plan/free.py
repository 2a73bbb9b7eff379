"""What a plan may take where no budget is given: what is free here, or the whole of a card that is not here."""

from __future__ import annotations

from memfit.core.device import Device
from memfit.hardware import free_device_bytes, free_host_bytes


def free_bytes(device: Device) -> tuple[int, str]:
    """Bytes, and where the figure comes from."""
    if device.kind == "cpu":
        return free_host_bytes(), "memory available on this machine, within its container's limit"
    free = free_device_bytes(device)
    if free is not None:
        return free, "free on the card, by its driver"
    return device.capacity_bytes, f"the usable memory of a {device.title or device.name}, which is not in this machine"
