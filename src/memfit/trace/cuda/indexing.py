"""Gradients of look-ups sort the indices first; sorts and scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.trace.cuda.target import CudaTarget

aten: Any = torch.ops.aten
_INDEX_BYTES = 8
_WARP = 32
_FEW_LOOKUPS = 3072
_ROWS_FOR_THREAD = 10


def _accumulated(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    """`index_put` that adds: five buffers of an index each, and one byte; read off recorded allocations."""
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not accumulates:
        return ()
    indices = [index for index in args[1] if isinstance(index, torch.Tensor)]
    count = torch.broadcast_shapes(*(index.shape for index in indices)).numel() if indices else 0
    return (*([_INDEX_BYTES * count] * 5), 1) if count else ()


def _embedding_backward(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    """`embedding_dense_backward_cuda`: sorted indices, then a partial sum in float32 for each run of equal ones."""
    grad, indices = args[:2]
    count, weights = indices.numel(), args[2]
    copied = () if grad.is_contiguous() else (grad.numel() * grad.element_size(),)
    if count <= _FEW_LOOKUPS and not (args[4] if len(args) > 4 else False):
        return copied
    segments = min(count, weights)
    partials = count // _ROWS_FOR_THREAD + segments
    wide = -(-grad.shape[-1] // _WARP) * _WARP
    sizes = [_INDEX_BYTES * count] * 6 + [_INDEX_BYTES * segments] * 2 + [_INDEX_BYTES * partials]
    return (*copied, *sizes, partials * wide * 4)


def _sort(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    """Keys and positions once more, before and after."""
    values = args[0].numel() * args[0].element_size()
    return values, _INDEX_BYTES * args[0].numel(), _INDEX_BYTES * args[0].numel()


SCRATCH: dict[Any, Callable[..., Any]] = {
    aten.index_put.default: _accumulated,
    aten.index_put_.default: _accumulated,
    aten._index_put_impl_.default: _accumulated,
    aten._unsafe_index_put.default: _accumulated,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.sort.default: _sort,
    aten.sort.stable: _sort,
}
