"""`scaled_dot_product_attention` as a card runs it: the kernel it chooses, and the tensors that lead to that kernel."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from memfit.trace.cuda.attention_choice import CUDNN, EFFICIENT, FLASH, Call, choose
from memfit.trace.cuda.registering import Overrides
from memfit.trace.cuda.target import CudaTarget

aten: Any = torch.ops.aten
_ALIGNED = 16  # elements of a mask's rows
_FLASH_STEP = 8


def register(overrides: Overrides, target: CudaTarget) -> None:
    """Put it in place for the time of a trace."""
    whole = aten.scaled_dot_product_attention.default
    overrides.add_on_fakes("scaled_dot_product_attention", whole, partial(_attention, target))


def _attention(target: CudaTarget, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
               scale: float | None = None, enable_gqa: bool = False) -> torch.Tensor:
    call = Call(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    kind = choose(call, target)
    mask = _added(attn_mask, query.dtype)
    if kind == FLASH:
        return _flash(call, scale)
    if kind == EFFICIENT:
        return _efficient(call, mask, scale)
    if kind == CUDNN:
        wide = _expanded(mask, query, key) if mask is not None else None
        return aten._scaled_dot_product_cudnn_attention.default(
            query, key, value, wide, call.needs_grad, dropout_p, is_causal, False, scale=scale)[0]
    return aten._scaled_dot_product_attention_math.default(
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa)[0]


def _flash(call: Call, scale: float | None) -> torch.Tensor:
    """Heads are padded to a multiple of eight."""
    side = call.query.shape[-1]
    scale = scale if scale is not None else 1 / math.sqrt(side)
    missing = -side % _FLASH_STEP
    tensors = [F.pad(t, (0, missing)) if missing else t for t in (call.query, call.key, call.value)]
    out = aten._scaled_dot_product_flash_attention.default(*tensors, call.dropout, call.causal, False, scale=scale)[0]
    return out[..., :side] if missing else out


def _efficient(call: Call, mask: torch.Tensor | None, scale: float | None) -> torch.Tensor:
    if mask is not None:
        mask = _expanded(_aligned(mask), call.query, call.key)
    return aten._scaled_dot_product_efficient_attention.default(
        call.query, call.key, call.value, mask, call.needs_grad or (mask is not None and mask.requires_grad), call.dropout,
        call.causal, scale=scale)[0]


def _added(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A boolean mask as numbers to be added. What they are does not matter: a trace would work out known values."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.empty_like(mask, dtype=dtype)


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """Rows that do not begin at a multiple of 16 elements are padded, and the padding cut off again."""
    last = mask.shape[-1]
    missing = -last % _ALIGNED
    if not missing:
        return mask
    return F.pad(mask, (0, missing))[..., :last]


def _expanded(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
