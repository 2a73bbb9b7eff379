"""Layer, group and batch normalization."""

from __future__ import annotations

from typing import Any

import torch

from memfit.trace.kernels.sizes import copy_bytes, product, threads

aten: Any = torch.ops.aten


def layer_norm(args: Any, kwargs: Any, out: Any) -> int:
    return copy_bytes(args[0])


def layer_norm_backward(args: Any, kwargs: Any, out: Any) -> int:
    """Contiguous copies, then gradients of weight and bias for each thread."""
    grad, x, shape = args[:3]
    partial = 2 * threads() * product(shape) * max(4, x.element_size())
    return copy_bytes(grad) + copy_bytes(x) + (partial if out[1] is not None or out[2] is not None else 0)


SCRATCH = {
    aten.native_layer_norm.default: layer_norm,
    aten.native_layer_norm_backward.default: layer_norm_backward,
}
