"""A card as cuDNN's deviceless queries take it: its properties in JSON.

Fields as in openxla/xla, xla/backends/gpu/target_config/cudnn_device_props.cc; limits by compute capability from the
CUDA C++ Programming Guide (technical specifications by compute capability), level 2 caches from NVIDIA's whitepapers.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from memfit.core.device import Device
from memfit.core.units import KIB, MIB

_THREADS_OF_A_BLOCK = 1024
_REGISTERS = 65536
_DRIVER = 12_080  # cuDNN's answers do not depend on it


class Limits(NamedTuple):
    """What a compute capability fixes: threads and blocks of a multiprocessor, shared memory of a block at most, and level
    2 cache of each of the card's multiprocessors (the cache grows with the chip). Clocks are those of one card of the kind:
    answers were found to depend on the capability, and for Hopper on the memory's clock, but on no other property."""

    threads: int
    blocks: int
    shared_bytes: int
    cache_bytes: int
    clock_khz: int
    memory_khz: int


_LIMITS = {
    (6, 0): Limits(2048, 32, 48 * KIB, 4 * MIB // 56, 1_328_000, 715_000),
    (6, 1): Limits(2048, 32, 48 * KIB, 2 * MIB // 20, 1_733_000, 5_005_000),
    (6, 2): Limits(2048, 32, 48 * KIB, 512 * KIB // 2, 1_300_000, 1_600_000),
    (7, 0): Limits(2048, 32, 96 * KIB, 6 * MIB // 80, 1_530_000, 877_000),
    (7, 2): Limits(2048, 32, 96 * KIB, 512 * KIB // 8, 1_377_000, 2_133_000),
    (7, 5): Limits(1024, 16, 64 * KIB, 4 * MIB // 40, 1_590_000, 5_001_000),
    (8, 0): Limits(2048, 32, 163 * KIB, 40 * MIB // 108, 1_410_000, 1_215_000),
    (8, 6): Limits(1536, 16, 99 * KIB, 3 * MIB // 28, 1_777_000, 7_501_000),
    (8, 7): Limits(1536, 16, 163 * KIB, 4 * MIB // 16, 1_300_000, 3_200_000),
    (8, 9): Limits(1536, 24, 99 * KIB, 24 * MIB // 24, 2_460_000, 8_501_000),
    (9, 0): Limits(2048, 32, 227 * KIB, 50 * MIB // 132, 1_980_000, 3_201_000),
    (10, 0): Limits(2048, 32, 227 * KIB, 126 * MIB // 148, 1_965_000, 3_996_000),
    (10, 3): Limits(2048, 32, 227 * KIB, 126 * MIB // 148, 1_965_000, 3_996_000),
    (12, 0): Limits(1536, 24, 99 * KIB, 96 * MIB // 170, 2_407_000, 14_001_000),
    (12, 1): Limits(1536, 24, 99 * KIB, 24 * MIB // 48, 2_400_000, 4_266_000),
}


def properties_json(device: Device) -> str:
    """The card's properties. Raises ValueError where its compute capability or multiprocessors are not known."""
    capability = device.compute_capability
    if capability is None or device.multiprocessors is None or capability not in _LIMITS:
        raise ValueError(f"{device.name} cannot be described to cuDNN")
    limits = _LIMITS[capability]
    reserved = KIB if capability >= (8, 0) else 0
    return json.dumps({
        "deviceVer": capability[0] * 100 + capability[1] * 10, "multiProcessorCount": device.multiprocessors,
        "warpSize": 32, "maxSharedMemoryPerBlock": 48 * KIB, "maxSharedMemoryPerBlockOptin": limits.shared_bytes,
        "oversizedSharedMemoryPerBlock": 0, "reservedSharedMemoryPerBlock": reserved, "maxRegistersPerSM": _REGISTERS,
        "maxCtasPerSM": limits.blocks, "maxThreadsPerBlock": _THREADS_OF_A_BLOCK, "maxThreadsPerSM": limits.threads,
        "regsPerBlock": _REGISTERS, "totalGlobalMem": device.capacity_bytes, "smClockRateKHz": limits.clock_khz,
        "l2CacheSize": limits.cache_bytes * device.multiprocessors, "maxBlockSize": [1024, 1024, 64],
        "memClockRateKHz": limits.memory_khz, "maxGridSize": [2**31 - 1, 65535, 65535], "supportCoopLaunch": 1,
        "pciDeviceId": 0, "isTccDriver": 0, "cudaDeviceId": 0, "driverVer": _DRIVER, "deviceName": device.title or device.name})
