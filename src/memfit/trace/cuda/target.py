"""The card that a trace is made for, as far as kernels ask for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import torch

from memfit.core.device import Device

_AMPERE = (8, 6)
_USUAL_MULTIPROCESSORS = 40


def installed_version() -> tuple[int, int]:
    """`(2, 11)` for torch 2.11.0+cu128."""
    return parse_version(torch.__version__)


def parse_version(text: str) -> tuple[int, int]:
    """The first two numbers of a version; (0, 0) where there are none."""
    numbers = re.findall(r"\d+", text)[:2]
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else (0, 0)


@dataclass(frozen=True)
class CudaTarget:
    """Compute capability, multiprocessors, and the version of torch whose kernels run (by default the one here).

    `threads` is how many threads can be resident on a multiprocessor; `device` the card that it stands for.
    """

    compute_capability: tuple[int, int] = _AMPERE
    multiprocessors: int = _USUAL_MULTIPROCESSORS
    torch_version: tuple[int, int] = field(default_factory=installed_version)
    device: Device | None = field(default=None, compare=False, hash=False)

    @property
    def threads(self) -> int:
        """Threads of a multiprocessor: CUDA C++ Programming Guide, technical specifications by compute capability."""
        if self.compute_capability == (7, 5):
            return 1024
        return 1536 if self.compute_capability in ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1)) else 2048


def target_of(device: Device | CudaTarget | None, torch_version: str = "") -> CudaTarget | None:
    """The target for a device, with the kernels of a version of torch ("": the one here); None for one that is no card."""
    if device is None or isinstance(device, CudaTarget):
        return device
    if device.kind != "cuda":
        return None
    version = parse_version(torch_version) if torch_version else installed_version()
    return CudaTarget(device.compute_capability or _AMPERE, device.multiprocessors or _USUAL_MULTIPROCESSORS, version, device)
