"""Kernels that gather, scatter and move elements."""

from __future__ import annotations

from typing import Any

import torch

from memfit.trace.kernels.sizes import copy_bytes, nbytes

aten: Any = torch.ops.aten


def embedding(args: Any, kwargs: Any, out: Any) -> int:
    return copy_bytes(args[1])


def embedding_backward(args: Any, kwargs: Any, out: Any) -> int:
    return copy_bytes(args[0]) + copy_bytes(args[1])


def roll(args: Any, kwargs: Any, out: Any) -> int:
    """One dimension after the other, each into a new tensor."""
    dims = args[2] if len(args) > 2 else ()
    return nbytes(out) if len(dims) > 1 else 0


SCRATCH = {
    aten.embedding.default: embedding,
    aten.embedding_dense_backward.default: embedding_backward,
    aten.roll.default: roll,
}
