"""What a process holds on a card beside PyTorch's allocator: the CUDA context, and kernels as they are loaded.

The two are told apart, as measurements tell them apart: a monitor that starts after the context was made sees only the
kernels. Each constant names the public document or thread it was read from; none was fitted to a training run.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from typing import NamedTuple

from memfit.core.device import Device
from memfit.core.units import KIB, MIB

SOURCES: dict[str, str] = {
    "local memory": "NVIDIA forum 39558 and 289339 (per context: local memory of a thread x threads of a multiprocessor x "
                    "multiprocessors); CUDA Runtime API, cudaLimitStackSize: 1 KiB a thread by default",
    "threads": "CUDA C++ Programming Guide, technical specifications by compute capability",
    "context": "less local memory: RTX 3090, torch 2.7.1+cu128, 256 MiB (InvokeAI#9413); Titan V, PyCUDA, 319 MiB "
               "(pytorch#28394); RTX 6000 Ada, torch 2.10+cu130, 426 MiB (unsloth-zoo#1053)",
    "context on large chips": "less local memory: A100-80GB, torch 2.1.1+cu121, 0.47 GiB (stas00/ml-engineering, training/"
                              "performance); 0.71 GiB before the first allocation (same, debug/pytorch)",
    "lazy kernels": "about 5 % of the libraries' kernels are used (NVIDIA forum 261135) of the 1.31 GiB that all take "
                    "(A100-80GB, torch 1.10.2: 1.78 GiB with the context, stas00/ml-engineering); range: a first allocation "
                    "under lazy loading, 300 (pytorch#107667) to 400 MiB (pytorch#109888, both a maintainer), less the "
                    "context of 256 MiB",
    "lazy convolutions": "at the upper end: 60 of cuDNN 9.8's 649 modules of code for 8.0, a third of a MiB each (see below)",
    "eager kernels": "less the context: GTX 1080, torch 1.8.2+cu101, 721 MiB, RTX 3090, torch 1.8.2+cu111, 1687 MiB "
                     "(pytorch#55277); Titan V, torch 1.3+cu101, 1007 MiB (pytorch#28394); A100-80GB, torch 1.10.2, 1.78 GiB, "
                     "torch 2.1.1, 0.92 GiB (stas00/ml-engineering)",
    "eager kernels of 2.x": "torch 2.1.1, A100-80GB, CUDA_MODULE_LOADING=EAGER: 1.39 GiB, less the context of 0.47 "
                            "(stas00/ml-engineering); the machine code for 8.0 in the wheels, summed from their fat binaries, "
                            "is alike: libtorch_cuda 2.11.0 617 MiB, cuBLAS 12.8.4 and cuBLASLt 243 MiB",
    "eager convolutions": "machine code in cuDNN 9.8.0's fat binaries (precompiled engines, operations): for 8.0 259 MiB, for "
                          "8.6 with that of 8.0 313 MiB, for 7.0 243 MiB",
}

_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
_FIRST_LAZY = (1, 13)  # sets CUDA_MODULE_LOADING=LAZY (pytorch#86509)
_AMPERE, _HOPPER = (8, 0), (9, 0)
# MiB: the least, what is usual, the most
_LAZY, _LAZY_CONVOLUTIONS = (16, 67, 144), (0, 0, 20)
_EAGER, _EAGER_AMPERE, _EAGER_CONVOLUTIONS = (522, 1016, 1431), (460, 1344, 1431), (0, 259, 313)
_UNKNOWN = (16, 942, 942)  # of 2.x: lazy at the least; else all of them ("eager kernels of 2.x"), which is the safe side


class Span(NamedTuple):
    """Bytes: the least, what is usual, the most."""

    low_bytes: int
    typical_bytes: int
    high_bytes: int

    def __add__(self, other: object) -> Span:
        if not isinstance(other, Span):
            return NotImplemented
        return Span(*(mine + its for mine, its in zip(self, other, strict=True)))

    def beside(self, other: Span) -> Span:
        """The sum where the two err independently: usual figures add up, distances from them as the sides of a right angle
        do."""
        usual = self.typical_bytes + other.typical_bytes
        below = hypot(self.typical_bytes - self.low_bytes, other.typical_bytes - other.low_bytes)
        above = hypot(self.high_bytes - self.typical_bytes, other.high_bytes - other.typical_bytes)
        return Span(usual - round(below), usual, usual + round(above))


@dataclass(frozen=True)
class ProcessMemory:
    """`context` is there before the first tensor; `modules` are kernels and library handles, loaded when first used."""

    context: Span
    modules: Span

    @property
    def total(self) -> Span:
        return self.context + self.modules


def process_memory(device: Device, torch_version: str = "", *, convolutions: bool = False) -> ProcessMemory:
    """Both parts for a card and a version of PyTorch (`2.6.0+cu124`; "" for a recent one; for one that says nothing, such
    as `2.x`, all kernels may be loaded, which is the safe side: the typical figure is that, the low one lazy loading).

    `convolutions`: whether the step runs cuDNN's kernels, too. Raises ValueError for a device that is no CUDA card.
    """
    if device.kind != "cuda":
        raise ValueError(f"{device.name} has no CUDA context")
    return ProcessMemory(_context(device), _modules(device, torch_version, convolutions))


def overhead_range(device: Device, torch_version: str = "", *, convolutions: bool = False) -> Span:
    """Low, typical and high bytes that a driver's figure has above what the allocator has reserved."""
    return process_memory(device, torch_version, convolutions=convolutions).total


def local_memory_bytes(device: Device) -> int:
    """The stack of every thread that can be resident, which each context sets aside."""
    capability = device.compute_capability or _AMPERE
    return KIB * _THREADS.get(capability, 2048) * (device.multiprocessors or 0)


def _context(device: Device) -> Span:
    capability, local = device.compute_capability or _AMPERE, local_memory_bytes(device)
    if capability == _AMPERE:
        rest = (133, 263, 463)
    elif _HOPPER <= capability < (12, 0):
        rest = (213, 463, 600)
    else:
        rest = (133, 159, 263)
    return Span(*(local + part * MIB for part in rest))


def _modules(device: Device, torch_version: str, convolutions: bool) -> Span:
    lazily = _loads_lazily(torch_version)
    if lazily:
        parts, more = _LAZY, _LAZY_CONVOLUTIONS
    else:
        eager = _EAGER_AMPERE if _is_ampere(device) else _EAGER
        parts, more = _UNKNOWN if lazily is None else eager, _EAGER_CONVOLUTIONS
    return _span_mib(parts) + _span_mib(more if convolutions else (0, 0, 0))


def _is_ampere(device: Device) -> bool:
    return (device.compute_capability or _AMPERE) >= _AMPERE


def _loads_lazily(torch_version: str) -> bool | None:
    """Versions from 1.13 load kernels when they are used; older ones load all of them with the library. None where the
    text does not say (`2.x`)."""
    if not torch_version:
        return True
    numbers = torch_version.lstrip("~v ").partition("+")[0].split(".")[:2]
    if len(numbers) < 2 or not all(part.isdecimal() for part in numbers):
        return None
    return (int(numbers[0]), int(numbers[1])) >= _FIRST_LAZY


def _span_mib(parts: tuple[int, int, int]) -> Span:
    return Span(*(part * MIB for part in parts))
