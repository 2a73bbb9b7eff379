"""Attention and softmax kernels."""

from __future__ import annotations

from typing import Any

import torch

from memfit.trace.kernels.sizes import threads

aten: Any = torch.ops.aten
_KEYS_AT_ONCE = 512


def _queries_at_once(length: int) -> int:
    return 256 if length >= 768 else 64 if length >= 192 else 32


def flash_forward(args: Any, kwargs: Any, out: Any) -> int:
    """One tile of scores, its maxima, sums and outputs for each thread, in fp32."""
    query, key, value = args[:3]
    queries, keys = _queries_at_once(query.shape[-2]), min(_KEYS_AT_ONCE, key.shape[-2])
    queries = min(queries, query.shape[-2])
    tile = queries * keys + 2 * queries + queries * value.shape[-1]
    reduced = queries * keys if query.dtype in (torch.bfloat16, torch.float16) else 0
    return threads() * (4 * tile + 2 * reduced)


def flash_backward(args: Any, kwargs: Any, out: Any) -> int:
    """Scores and their gradient for each thread, in fp32."""
    query, key = args[1], args[2]
    queries, keys = _queries_at_once(query.shape[-2]), min(_KEYS_AT_ONCE, key.shape[-2])
    queries = min(queries, query.shape[-2])
    reduced = 2 * queries * keys if query.dtype in (torch.bfloat16, torch.float16) else 0
    return threads() * (4 * (2 * queries * keys + queries) + 2 * reduced)


def safe_softmax(args: Any, kwargs: Any, out: Any) -> int:
    """The mask of minus infinities, and which rows are all masked."""
    dim = args[1]
    return args[0].numel() + args[0].numel() // max(1, args[0].shape[dim]) + 4


SCRATCH = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: flash_forward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: flash_backward,
    aten._safe_softmax.default: safe_softmax,
}
