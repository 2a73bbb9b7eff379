"""Workspaces of cuBLAS: one for each thread that multiplies matrices, kept to the end of the process.

A step has two such threads: the one that runs forward and optimizer, and autograd's. Sizes are those of
`aten/src/ATen/cuda/CublasHandlePool.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.trace import Op
from memfit.core.units import KIB, MIB

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
_USUAL_BYTES = (2 * 4096 + 8 * 16) * KIB
_LARGE_BYTES = 32 * MIB
_LARGE = (9, 10, 12)  # major compute capabilities
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot", "_grouped_mm"})


def workspace_bytes(device: Device, environment: Mapping[str, str]) -> int:
    """Bytes of one workspace on a card. Raises UsageError for a CUBLAS_WORKSPACE_CONFIG that does not parse."""
    text = environment.get(VARIABLE, "")
    if text:
        return _configured(text)
    capability = device.compute_capability or (8, 0)
    return _LARGE_BYTES if capability[0] in _LARGE else _USUAL_BYTES


def needs_workspace(op: Op) -> bool:
    """Whether an operator calls cuBLAS."""
    return op.name in _PRODUCTS


def thread_of(op: Op) -> str:
    """Which of the two threads runs an operator."""
    return "autograd" if op.autograd else "main"


def _configured(text: str) -> int:
    """`:4096:2:16:8` is two buffers of 4096 KiB and eight of 16 KiB."""
    numbers = text.split(":")[1:]
    if not text.startswith(":") or len(numbers) % 2 or not all(number.isdecimal() for number in numbers):
        raise UsageError(f"{VARIABLE}: {text!r} is not pairs of KiB and count", "write it as :4096:8 or :16:8")
    sizes = [int(number) for number in numbers]
    return sum(size * count * KIB for size, count in zip(sizes[::2], sizes[1::2], strict=True))
