"""Reductions, scans, sorts and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.trace.kernels.sizes import nbytes, threads

aten: Any = torch.ops.aten
_NO_REDUCTION = 0
_GRAIN = 32768  # elements below which a kernel stays on one thread


def scan(args: Any, kwargs: Any, out: Any) -> int:
    """The input in the result's type."""
    return nbytes(out) if args[0].dtype != out.dtype else 0


def logsumexp(args: Any, kwargs: Any, out: Any) -> int:
    """The exponentials of the shifted input, and the maxima."""
    return nbytes(args[0]) + nbytes(out)


def pointwise_loss(args: Any, kwargs: Any, out: Any) -> int:
    """Each element's loss, before the mean."""
    reduction = args[2] if len(args) > 2 and isinstance(args[2], int) else kwargs.get("reduction", 1)
    return nbytes(args[0]) if reduction != _NO_REDUCTION else 0


def whole_input(args: Any, kwargs: Any, out: Any) -> int:
    return nbytes(args[0])


def logits_loss(args: Any, kwargs: Any, out: Any) -> int:
    """The logarithm of the sigmoid, and each element's loss."""
    return 2 * nbytes(args[0])


def distance(args: Any, kwargs: Any, out: Any) -> int:
    """Both sets of points, each with its norms and ones beside."""
    return sum(nbytes(points) * (points.shape[-1] + 2) // max(1, points.shape[-1]) for points in args[:2])


def sort(args: Any, kwargs: Any, out: Any) -> int:
    """Positions of one row."""
    dim = next((value for value in args[1:] if type(value) is int), kwargs.get("dim", -1))
    return 8 * args[0].shape[dim] if args[0].dim() else 0


def kth_value(args: Any, kwargs: Any, out: Any) -> int:
    """A copy of the values, and their positions."""
    return nbytes(args[0]) + 8 * args[0].numel()


def masked_select(args: Any, kwargs: Any, out: Any) -> int:
    """The mask as integers: once to count, before the result is there; with several threads again, and their running sum.

    After `masked_select_out_impl_cpu` in aten/src/ATen/native/TensorAdvancedIndexing.cpp.
    """
    x, mask = torch.broadcast_tensors(*args[:2])
    serial = (args[0].numel() < _GRAIN or threads() == 1) and x.is_contiguous() and mask.is_contiguous()
    return max(8 * x.numel() - nbytes(out), 0 if serial else 16 * x.numel())


def index(args: Any, kwargs: Any, out: Any) -> int:
    """Masks become positions."""
    masks = [i for i in args[1] if isinstance(i, torch.Tensor) and i.dtype is torch.bool]
    return sum(8 * mask.numel() * mask.dim() for mask in masks)


SCRATCH: dict[Any, Callable[[Any, Any, Any], int]] = {
    aten.cumsum.default: scan,
    aten.cumprod.default: scan,
    aten.logsumexp.default: logsumexp,
    aten.mse_loss.default: pointwise_loss,
    aten.smooth_l1_loss.default: pointwise_loss,
    aten.huber_loss.default: pointwise_loss,
    aten.im2col.default: whole_input,
    aten.binary_cross_entropy_with_logits.default: logits_loss,
    aten._cdist_forward.default: distance,
    aten._euclidean_dist.default: distance,
    aten.sort.default: sort,
    aten.sort.stable: sort,
    aten.kthvalue.default: kth_value,
    aten.masked_select.default: masked_select,
    aten.index.Tensor: index,
}
