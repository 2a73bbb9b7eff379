"""Memory that a CUDA kernel takes inside one call: rows by operator overload.

A row is `scratch(args, kwargs, out, target)`, which gives bytes, several buffers, or an `Elastic` workspace (see `sizes`).
A kernel that is in no table takes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from memfit.trace.cuda import convolution, fused_attention, indexing, normalization, products, recurrent, reductions
from memfit.trace.cuda.sizes import Taken
from memfit.trace.cuda.target import CudaTarget
from memfit.trace.kernels import copies
from memfit.trace.kernels.elementwise import where

aten: Any = torch.ops.aten
Scratch = Callable[[Any, Any, Any, CudaTarget], Taken]
_CPU_ONLY = {aten.glu.default, aten.roll.default, aten.embedding_dense_backward.default}


def _alike(row: Callable[[Any, Any, Any], int]) -> Scratch:
    """A row of the CPU's tables that holds on a card, too."""
    return lambda args, kwargs, out, target: row(args, kwargs, out)


SCRATCH: dict[Any, Scratch] = {func: _alike(row) for func, row in copies.SCRATCH.items() if func not in _CPU_ONLY}
SCRATCH[aten.where.self] = _alike(where)
for _room in (convolution, fused_attention, indexing, normalization, products, recurrent, reductions):
    SCRATCH.update(_room.SCRATCH)


def scratch_function(func: Any, target: CudaTarget) -> Callable[[Any, Any, Any], Taken] | None:
    """`scratch(args, kwargs, out)` for an operator on the target, or None for a kernel that takes nothing."""
    row = SCRATCH.get(func)
    return None if row is None else partial(_on, row, target)


def _on(row: Scratch, target: CudaTarget, args: Any, kwargs: Any, out: Any) -> Taken:
    return row(args, kwargs, out, target)
