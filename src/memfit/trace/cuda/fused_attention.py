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
    return *sizes, *_by_query_head(heads, key, value)


def _by_query_head(heads: int, key: Any, value: Any) -> tuple[int, ...]:
    """Gradients of keys and values for each head of the query, summed afterwards; none where each has its own."""
    if key.shape[1] == heads:
        return ()
    return tuple(key.shape[0] * key.shape[2] * heads * tensor.shape[-1] * tensor.element_size() for tensor in (key, value))


def _efficient_backward(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    """Row sums, and keys' gradients by query head where heads are shared; for half precision the gradient of the query in
    float32, in tiles with a lock each (`mem_eff_attention/kernel_backward.h`)."""
    query, key, value = args[1:4]
    batch, heads, length, side = query.shape
    shared = _by_query_head(heads, key, value)
    sums = _FLOAT * batch * heads * length
    if query.element_size() >= _FLOAT:
        return *shared, sums
    tiles = math.ceil(length / _TILE) * math.ceil(side / _TILE)
    elements = tiles * (_TILE * _TILE + 4)
    if side > 128:
        elements += _up(key.shape[2], _TILE) * (_up(side, _TILE) + _up(value.shape[-1], _TILE))
    return *shared, sums, _FLOAT * batch * heads * _up(elements, 4)


SCRATCH: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
}
