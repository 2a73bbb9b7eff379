"""Sizes that the kernels' formulas share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch


def nbytes(tensor: Any) -> int:
    """Bytes of a tensor's elements (not of its storage)."""
    return tensor.numel() * tensor.element_size()


def padded(channels: int, block: int) -> int:
    """Channels rounded up to whole blocks."""
    return -(-channels // block) * block


def product(sides: Iterable[int]) -> int:
    return math.prod(sides)


def threads() -> int:
    """Threads of the process: many kernels take a buffer for each."""
    return torch.get_num_threads()


def copy_bytes(tensor: Any) -> int:
    """What `tensor.contiguous()` takes: nothing where it is contiguous already."""
    return 0 if tensor.is_contiguous() else nbytes(tensor)
