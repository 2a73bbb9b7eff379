"""What flash and memory-efficient attention take while they run backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from memfit.trace.cuda.target import CudaTarget

aten: Any = torch.ops.aten
_FLOAT = 4
_TILE = 64


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


def _flash_backward(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    """The gradient of the query in float32, row sums, and keys' gradients by query head where heads are shared
    (`aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp`)."""
    query, key, value = args[1:4]
    batch, heads, length, side = query.shape
    rows, columns = _up(length, 128), _up(side, 32 if side <= 128 else 64)
    sizes = [_FLOAT * batch * heads * rows, _FLOAT * batch * heads * rows * columns]
    if key.shape[1] != heads:
        shared = batch * key.shape[2] * heads
        sizes += [shared * side * key.element_size(), shared * value.shape[-1] * value.element_size()]
    return tuple(sizes)


def _efficient_backward(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    """Row sums; for half precision the gradient of the query in float32, in tiles with a lock each
    (`mem_eff_attention/kernel_backward.h`)."""
    query, key, value = args[1:4]
    batch, heads, length, side = query.shape
    sums = _FLOAT * batch * heads * length
    if query.element_size() >= _FLOAT:
        return (sums,)
    tiles = math.ceil(length / _TILE) * math.ceil(side / _TILE)
    elements = tiles * (_TILE * _TILE + 4)
    if side > 128:
        elements += _up(key.shape[2], _TILE) * (_up(side, _TILE) + _up(value.shape[-1], _TILE))
    return sums, _FLOAT * batch * heads * _up(elements, 4)


SCRATCH: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
}
