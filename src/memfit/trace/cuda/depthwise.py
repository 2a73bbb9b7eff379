"""Which depthwise convolutions of half precision cuDNN takes: the list in Convolution.cpp
(`check_cudnn_depthwise_workload_with_filter`), found by timing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_FEWEST_CHANNELS = 32
_FILTERS = (1, 3, 5)
_NARROWEST = 7


def through_cudnn(x: Any, weight: Any, stride: Sequence[int], dilation: Sequence[int]) -> bool:
    """For tensors that are not channels last. Others go to torch's own kernels, which take no workspace."""
    fits = (x.dtype is weight.dtype is torch.float16 and x.dim() == 4 and max(dilation) == 1
            and x.shape[1] >= _FEWEST_CHANNELS and (stride[0] == stride[1] or x.shape[2] == 1))
    return bool(fits) and _worth_it(x.shape, weight.shape[2:], stride[1])


def _worth_it(sides: Sequence[int], kernel: Sequence[int], stride: int) -> bool:
    batch, channels, height, width = sides
    if height == 1 and stride == 1:
        return True
    filter_side = kernel[1]
    if kernel[0] != filter_side or filter_side not in _FILTERS or width < _NARROWEST or stride not in (1, 2):
        return False
    if stride == 1:
        return True
    if batch == 1:
        return filter_side > 1 or width <= 28
    if filter_side == 1:
        return batch <= 16 and channels >= 128 and width <= _NARROWEST
    return channels >= 512 or (channels >= 256 and width >= 28)
