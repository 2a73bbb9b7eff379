"""Kernels that only make their inputs contiguous first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.trace.kernels.sizes import copy_bytes, image_copy_bytes, matching_copy_bytes, nbytes

aten: Any = torch.ops.aten


def _of(copied: Callable[[Any], int], *positions: int) -> Callable[[Any, Any, Any], int]:
    def scratch(args: Any, kwargs: Any, out: Any) -> int:
        return sum(copied(args[place]) for place in positions if isinstance(args[place], torch.Tensor))

    return scratch


def pooling_backward(args: Any, kwargs: Any, out: Any) -> int:
    """Input and indices in the gradient's layout, which is made dense."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return sum(matching_copy_bytes(tensor, args[0]) for tensor in tensors)


def roll(args: Any, kwargs: Any, out: Any) -> int:
    """One dimension after the other, each into a new tensor."""
    return nbytes(out) if len(args) > 2 and len(args[2]) > 1 else 0


_first, _both = _of(copy_bytes, 0), _of(copy_bytes, 0, 1)
_image = _of(image_copy_bytes, 0)

SCRATCH: dict[Any, Callable[[Any, Any, Any], int]] = {
    aten.roll.default: roll,
    aten._softmax.default: _first,
    aten._log_softmax.default: _first,
    aten._softmax_backward_data.default: _both,
    aten._log_softmax_backward_data.default: _both,
    aten.nll_loss_forward.default: _both,
    aten.nll_loss_backward.default: _of(copy_bytes, 1, 2),
    aten.nll_loss2d_forward.default: _both,
    aten.nll_loss2d_backward.default: _of(copy_bytes, 0, 1, 2),
    aten.max_pool2d_with_indices.default: _image,
    aten.max_pool2d_with_indices_backward.default: pooling_backward,
    aten.avg_pool2d.default: _image,
    aten.avg_pool2d_backward.default: pooling_backward,
    aten._adaptive_avg_pool2d.default: _image,
    aten._adaptive_avg_pool2d_backward.default: _image,
    aten.adaptive_max_pool2d.default: _image,
    aten.upsample_nearest2d.default: _image,
    aten.upsample_nearest2d_backward.default: _image,
    aten.upsample_bilinear2d.default: _image,
    aten.upsample_bilinear2d_backward.default: _image,
    aten.upsample_bicubic2d.default: _image,
    aten.upsample_bicubic2d_backward.default: _image,
    aten.reflection_pad2d.default: _image,
    aten.embedding.default: _of(copy_bytes, 1),
    aten.embedding_dense_backward.default: _both,
    aten.glu.default: _first,
}
