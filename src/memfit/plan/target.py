"""The device that a plan is made for, with this machine's measured rates where it is `cpu`."""

from __future__ import annotations

from dataclasses import replace

from memfit.core.costs import costs
from memfit.core.device import Device
from memfit.hardware import find_device
from memfit.monitor.disk_rates import disk_here
from memfit.monitor.rates import machine_rates


def named_device(device: str | Device | None) -> Device:
    """The device by name, None being the CPU. Nothing is measured. Raises UsageError for a name that is not known."""
    return device if isinstance(device, Device) else find_device(device or "cpu")


def target_device(device: str | Device | None) -> Device:
    """The device by name (None: the CPU, which memory is predicted for). The CPU's rates are measured once and kept."""
    if isinstance(device, Device):
        return device
    found = named_device(device)
    if found.kind != "cpu":
        return found
    here = machine_rates()
    return replace(found, rates=here["rates"], bandwidth=here["bandwidth"], overhead_s=here["overhead_s"],
                   costs=costs(here["operators"], here["overheads"], here["streams"]), disk=disk_here())
