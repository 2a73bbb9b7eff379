"""A module's forward in which products of batched matrices wait to see whether they are attention."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from memfit.hooks import call_forward
from memfit.strategies.exact.attention import einsum
from memfit.strategies.exact.attention.lazy import PRODUCTS, product, weights_of

_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


def with_attention(module: nn.Module, previous: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    """The module's forward, its attention fused."""
    with _Watching():
        return call_forward(module, previous, *args, **kwargs)


class _Watching(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = NotImplemented
        if func in PRODUCTS:
            if len(args) == 2 and not kwargs:
                result = product(func, *args)
        elif func is torch.einsum:
            result = einsum.product(args) if not kwargs else NotImplemented
        elif func is F.multi_head_attention_forward:
            result = _multi_head(args, kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result


def _multi_head(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`nn.MultiheadAttention`'s function without its weights, which are computed if somebody looks at them."""
    bound = _MULTI_HEAD.bind(*args, **kwargs)
    bound.apply_defaults()
    asked = bound.arguments
    query, key = asked["query"], asked["key"]
    drops = asked["training"] and asked["dropout_p"] > 0  # what was dropped inside of a kernel cannot be shown
    unusual = asked["bias_k"] is not None or asked["add_zero_attn"] or asked["static_k"] is not None
    if not asked["need_weights"] or drops or unusual or torch.is_autocast_enabled(query.device.type):
        return NotImplemented
    whole = {**asked}
    out, _ = F.multi_head_attention_forward(**{**whole, "need_weights": False})
    heads = () if asked["average_attn_weights"] else (asked["num_heads"],)
    lead = (query.shape[1],) if query.dim() == 3 else ()
    return out, weights_of(query, (*lead, *heads, query.shape[0], key.shape[0]), _weights, (), whole)


def _weights(**asked: Any) -> Any:
    return F.multi_head_attention_forward(**asked)[1]
