"""Floating-point operations of one operator call, by torch's own formulas and those that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

aten: Any = torch.ops.aten


def flop_formula(func: Any) -> Callable[..., Any] | None:
    """`formula(*args, **kwargs, out_val=out)` for an operator overload; None where it is not counted."""
    packet = getattr(func, "_overloadpacket", None)
    return _known(packet) or _known(_out_of_place(packet))


def _known(packet: Any) -> Callable[..., Any] | None:
    return _LACKING.get(packet) or flop_registry.get(packet)


def _out_of_place(packet: Any) -> Any:
    """`addmm` of `addmm_`: the registry has no in-place operators, and their arguments are the same."""
    name = getattr(packet, "__name__", "")
    return getattr(aten, name[:-1], None) if name.endswith("_") and not name.endswith("__") else None


def flops_of(formula: Callable[..., Any] | None, args: Any, kwargs: Any, out: Any) -> int:
    """Of one call; 0 where there is no formula or it does not know this form."""
    if formula is None:
        return 0
    try:
        return int(formula(*args, **kwargs, out_val=out))
    except Exception:
        return 0


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    return sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape)


def _recurrent(x: torch.Tensor, weights: Sequence[torch.Tensor], *others: Any, **__: Any) -> int:
    """Each matrix of each layer and direction meets each row, a time step of a sample, once."""
    packed = bool(others[12])
    rows = x.shape[0] if packed else x.shape[0] * x.shape[1]
    return 2 * rows * sum(weight.numel() for weight in weights if weight.dim() > 1)


def _recurrent_backward(x: torch.Tensor, weights: Sequence[torch.Tensor], *others: Any, **__: Any) -> int:
    """Twice the forward: gradients of the data, and (where they are asked for) of the weights."""
    packed, mask = bool(others[16]), others[19]
    rows = x.shape[0] if packed else x.shape[0] * x.shape[1]
    return 2 * rows * sum(weight.numel() for weight in weights if weight.dim() > 1) * (2 if mask[3] else 1)


_LACKING: dict[Any, Callable[..., int]] = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten._cudnn_rnn: _recurrent,
    aten._cudnn_rnn_backward: _recurrent_backward,
}
