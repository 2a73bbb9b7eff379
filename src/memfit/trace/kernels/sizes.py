"""Sizes that the kernels' formulas share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch


def nbytes(tensor: Any) -> int:
    """Bytes of a tensor's elements (not of its storage)."""
    return int(tensor.numel() * tensor.element_size())


def padded(count: int, block: int) -> int:
    """A count rounded up to whole blocks."""
    return -(-count // block) * block


def product(sides: Iterable[int]) -> int:
    return math.prod(sides)


def threads() -> int:
    """Threads of the process: many kernels take a buffer for each."""
    return torch.get_num_threads()


def copy_bytes(tensor: Any) -> int:
    """What `tensor.contiguous()` takes: nothing where it is contiguous already."""
    return 0 if tensor.is_contiguous() else nbytes(tensor)


def image_copy_bytes(tensor: Any) -> int:
    """What `tensor.contiguous(tensor.suggest_memory_format())` takes: channels-last images are left as they are."""
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = layouts.get(tensor.dim())
    if layout is not None and tensor.is_contiguous(memory_format=layout):
        return 0
    return copy_bytes(tensor)


def matching_copy_bytes(tensor: Any, like: Any) -> int:
    """What bringing a tensor into the layout of `like` takes (`tensor.contiguous(like.suggest_memory_format())`)."""
    last = like.dim() == 4 and not like.is_contiguous() and like.is_contiguous(memory_format=torch.channels_last)
    fits = tensor.is_contiguous(memory_format=torch.channels_last) if last else tensor.is_contiguous()
    return 0 if fits else nbytes(tensor)
