"""What convolutions and recurrent layers ask of the target: its card, its cuDNN, and how cuDNN is set."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from memfit.core.device import Device
from memfit.core.units import GIB
from memfit.hardware.cudnn import installed_version, version_of_torch
from memfit.trace.cuda.target import CudaTarget
from memfit.trace.cuda.target import installed_version as installed_torch

_UNKNOWN_MEMORY_BYTES = 16 * GIB


class Flags(NamedTuple):
    """`torch.backends.cudnn`."""

    enabled: bool
    benchmark: bool
    deterministic: bool
    allow_tf32: bool


def flags() -> Flags:
    """As they are set now."""
    cudnn: Any = torch.backends.cudnn
    tf32: Any = getattr(torch._C, "_get_cudnn_allow_tf32", lambda: True)
    deterministic = bool(cudnn.deterministic) or torch.are_deterministic_algorithms_enabled()
    return Flags(bool(cudnn.enabled), bool(cudnn.benchmark), deterministic, bool(tf32()))


@lru_cache(maxsize=16)
def cudnn_version(target: CudaTarget) -> int | None:
    """The cuDNN that runs on the target: the installed one for the torch that is installed, else the one that comes with
    the target's torch; None where that is not known."""
    named = version_of_torch(".".join(map(str, target.torch_version)))
    return (installed_version() or named) if target.torch_version == installed_torch() else named


def card_of(target: CudaTarget) -> Device:
    """The target's card; one of its capability and multiprocessors where it does not say which."""
    return target.device or _card(target.compute_capability, target.multiprocessors)


@lru_cache(maxsize=16)
def _card(capability: tuple[int, int], multiprocessors: int) -> Device:
    return Device("card", "cuda", _UNKNOWN_MEMORY_BYTES, {}, 1.0, compute_capability=capability,
                  multiprocessors=multiprocessors)
