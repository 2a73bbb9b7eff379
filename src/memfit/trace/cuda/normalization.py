"""Layer, group and batch normalization on a card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.trace.cuda.target import CudaTarget
from memfit.trace.kernels.sizes import copy_bytes, image_copy_bytes, matching_copy_bytes

aten: Any = torch.ops.aten
_FLOAT = 4


def _layer_norm(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> int:
    return copy_bytes(args[0])


def _layer_norm_backward(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    return copy_bytes(args[0]), copy_bytes(args[1])


def _group_norm(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    """Scale and shift of each sample and channel."""
    pairs = args[0].shape[0] * args[0].shape[1] * _FLOAT
    return image_copy_bytes(args[0]), pairs, pairs


def _group_norm_backward(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    grad, x = args[:2]
    pairs = x.shape[0] * x.shape[1] * _FLOAT
    return matching_copy_bytes(grad, x), image_copy_bytes(x), pairs, pairs, pairs


def _batch_norm_backward(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> int:
    """The gradient in the layout of the input."""
    return matching_copy_bytes(args[1], args[0])


SCRATCH: dict[Any, Callable[..., Any]] = {
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.cudnn_batch_norm_backward.default: _batch_norm_backward,
}
