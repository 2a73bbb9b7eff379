"""This machine as a target device."""

from __future__ import annotations

import os

from memfit.core.device import Device
from memfit.hardware.host import capacity_host_bytes

_FLOPS_A_CORE = 5e10  # float32; a placeholder of the right size until the machine's own rates are measured
_BANDWIDTH = 1e10


def cpu_device() -> Device:
    """`cpu`: capacity within the container's limit; rates are estimates that `monitor.rates` replaces by measurement."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rates = {"float32": cores * _FLOPS_A_CORE, "bfloat16": cores * _FLOPS_A_CORE}
    return Device("cpu", "cpu", capacity_host_bytes(), rates, _BANDWIDTH, overhead_s=2e-6, title="this machine's processor")
