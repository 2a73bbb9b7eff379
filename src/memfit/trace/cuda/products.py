"""Matrix products: operands that cuBLAS does not take as they lie are copied whole, and cuBLASLt's buffer of old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.core.units import MIB
from memfit.trace.cuda.target import CudaTarget

aten: Any = torch.ops.aten
_SHARED_WORKSPACE = (2, 7)  # from here cuBLASLt uses cuBLAS's workspace; before, a buffer of its own for each call


def _matrices(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    """`mm` and `addmm`. The last two arguments are the operands."""
    return tuple(matrix.numel() * matrix.element_size() for matrix in args[-2:] if not _for_blas(matrix))


def _with_bias(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    bias = args[0]
    fused = bias.dim() == 1 and bias.is_contiguous() and kwargs.get("beta", 1) == 1 == kwargs.get("alpha", 1)
    own = (MIB,) if fused and target.torch_version < _SHARED_WORKSPACE else ()
    return (*_matrices(args, kwargs, out, target), *own)


def _batches(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    """`bmm` and `baddbmm`."""
    return tuple(batch.numel() * batch.element_size() for batch in args[-2:] if not _batch_for_blas(batch))


def _for_blas(matrix: Any) -> bool:
    (rows, columns), (down, across) = matrix.shape, matrix.stride()
    if not _gapless(matrix):
        return False
    return (down == 1 and across >= max(1, rows)) or (across == 1 and down >= max(1, columns))


def _batch_for_blas(batch: Any) -> bool:
    """One of the two inner sides lies without gaps, the other one is at least as wide."""
    (_, rows, columns), (_, down, across) = batch.shape, batch.stride()
    return (down == 1 and across >= max(1, rows)) or (across == 1 and down >= max(1, columns))


def _gapless(matrix: Any) -> bool:
    """Non-overlapping and dense, or with rows further apart."""
    return all(stride > 0 or side <= 1 for side, stride in zip(matrix.shape, matrix.stride(), strict=True))


SCRATCH: dict[Any, Callable[..., Any]] = {
    aten.mm.default: _matrices,
    aten.addmm.default: _with_bias,
    aten.bmm.default: _batches,
    aten.baddbmm.default: _batches,
}
