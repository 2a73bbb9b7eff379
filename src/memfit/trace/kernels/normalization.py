"""Layer, group and batch normalization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.trace.kernels.sizes import copy_bytes, image_copy_bytes, matching_copy_bytes, nbytes, product, threads

aten: Any = torch.ops.aten


def layer_norm(args: Any, kwargs: Any, out: Any) -> int:
    return copy_bytes(args[0])


def layer_norm_backward(args: Any, kwargs: Any, out: Any) -> int:
    """Contiguous copies, then gradients of weight and bias for each thread."""
    grad, x, shape = args[:3]
    partial = 2 * threads() * product(shape) * max(4, x.element_size())
    return copy_bytes(grad) + copy_bytes(x) + (partial if out[1] is not None or out[2] is not None else 0)


def group_norm(args: Any, kwargs: Any, out: Any) -> int:
    return image_copy_bytes(args[0])


def group_norm_backward(args: Any, kwargs: Any, out: Any) -> int:
    """Two sums for each sample and channel."""
    grad, x = args[:2]
    return matching_copy_bytes(grad, x) + image_copy_bytes(x) + 8 * x.shape[0] * x.shape[1]


def batch_norm(args: Any, kwargs: Any, out: Any) -> int:
    """Sums for each channel; for each thread where channels lie innermost."""
    return 4 * args[0].shape[1] * (2 + 2 * threads())


def batch_norm_backward(args: Any, kwargs: Any, out: Any) -> int:
    """One more gradient of the input where both tensors are laid out alike, and sums for each thread."""
    grad, x = args[:2]
    alike = (grad.is_contiguous() and x.is_contiguous()) or (_channels_last(grad) and _channels_last(x))
    return (nbytes(x) if alike and out[0] is not None else 0) + 8 * x.shape[1] * threads()


def _channels_last(tensor: Any) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


SCRATCH: dict[Any, Callable[[Any, Any, Any], int]] = {
    aten.native_layer_norm.default: layer_norm,
    aten.native_layer_norm_backward.default: layer_norm_backward,
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
    aten.native_batch_norm.default: batch_norm,
    aten._native_batch_norm_legit.default: batch_norm,
    aten.native_batch_norm_backward.default: batch_norm_backward,
}
