"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.trace.kernels.convolution import has_avx512
from memfit.trace.kernels.sizes import nbytes, threads

aten: Any = torch.ops.aten
_REDUCED = (torch.bfloat16, torch.float16)


def matrices(args: Any, kwargs: Any, out: Any) -> int:
    """Scratch of `mm` and `addmm`: operands whose strides BLAS does not take, and oneDNN's packing of bf16 ones."""
    left, right = args[-2:]
    if left.dtype in _REDUCED and has_avx512():
        return _packed(left, right)
    return sum(nbytes(operand) for operand in (left, right) if not _for_blas(operand))


def batches(args: Any, kwargs: Any, out: Any) -> int:
    """Scratch of `bmm` and `baddbmm`: one matrix at a time where strides do not fit."""
    left, right = args[-2:]
    if left.dtype in _REDUCED and has_avx512():
        return _packed(left[0], right[0])
    return sum(nbytes(operand[0]) for operand in (left, right) if operand.shape[0] and not _for_blas(operand[0]))


def _packed(left: Any, right: Any) -> int:
    """oneDNN's packing of a bf16 product: panels of an operand for each thread, and sums in fp32 where the inner side is
    long. Fitted to 16 shapes; within 25 % on those that take more than 100 KiB."""
    rows, inner = left.shape
    if left.stride(0) == 1 and rows > 1:  # transposed on the left
        return threads() * min(inner * min(680, 130 + 2 * rows), 290_000 + 2200 * rows, 900_000)
    sums = 4 * rows * right.shape[1] if inner >= 2048 and inner > 2 * right.shape[1] else 0
    workers = threads() if rows >= 1024 or sums else 1
    return workers * (min(nbytes(right), 1_150_000) + 4928) + sums


def _for_blas(matrix: Any) -> bool:
    (rows, columns), (down, across) = matrix.shape, matrix.stride()
    if rows <= 1 or columns <= 1:
        return bool(matrix.numel() == 0 or down or across) or rows * columns == 1
    return (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))


SCRATCH: dict[Any, Callable[[Any, Any, Any], int]] = {
    aten.mm.default: matrices,
    aten.addmm.default: matrices,
    aten.bmm.default: batches,
    aten.baddbmm.default: batches,
}
