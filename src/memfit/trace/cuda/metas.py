"""Results whose shape or type on fakes is not what the CUDA kernel gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memfit.trace import metas as cpu
from memfit.trace.cuda import cells, recurrent
from memfit.trace.cuda.target import CudaTarget

aten: Any = torch.ops.aten
_CPU = torch.device("cpu")
_SECOND_FLASH = (2, 2)  # before, flash attention 1 worked on packed rows: batch, length, heads, side
_CPU_KERNELS = {aten.mkldnn_rnn_layer.default, aten.native_layer_norm_backward.default}


def _made(mode: Any, shape: Any, dtype: torch.dtype, strides: Any = None) -> Any:
    empty = torch.empty(shape, dtype=dtype, device="meta") if strides is None else torch.empty_strided(
        shape, strides, dtype=dtype, device="meta")
    return FakeTensor(mode, empty, _CPU)


def _statistics_in_float(mode: Any, args: Any, out: Any) -> Any:
    """Mean and deviation are float32 whatever the input is."""
    first, *statistics = out
    return (first, *(t if t.dtype is torch.float32 or t.dtype is torch.float64 else _made(mode, t.shape, torch.float32)
                     for t in statistics))


def _rms_norm(mode: Any, args: Any, kwargs: Any) -> Any:
    x, shape = args[:2]
    rows = [*x.shape[: x.dim() - len(shape)], *([1] * len(shape))]
    return _made(mode, x.shape, x.dtype), _made(mode, rows, torch.float32)


def _rms_norm_backward(mode: Any, args: Any, kwargs: Any) -> Any:
    _, x, _, _, weight, mask = args[:6]
    grad = _made(mode, x.shape, x.dtype) if mask[0] else None
    return grad, _made(mode, weight.shape, weight.dtype) if mask[1] and weight is not None else None


def _packed_rows(mode: Any, args: Any, out: Any) -> Any:
    """Flash attention's result with the heads of a position side by side, however the query lies."""
    first, *rest = out
    _, heads, length, side = first.shape
    strides = (length * heads * side, side, heads * side, 1)
    return first if first.stride() == strides else _made(mode, first.shape, first.dtype, strides), *rest


def _own_heads(mode: Any, args: Any, out: Any) -> Any:
    """Gradients of keys and values that several heads share: fakes before 2.14 gave each head of the query its own."""
    def fitting(grad: Any, of: Any) -> Any:
        if grad is None or grad.shape == of.shape:
            return grad
        _, heads, length, side = of.shape
        return _made(mode, of.shape, of.dtype, (length * heads * side, side, heads * side, 1))

    d_query, d_key, d_value, d_bias = out
    return d_query, fitting(d_key, args[2]), fitting(d_value, args[3]), d_bias


Correction = Callable[[Any, Any, Any], Any]
CORRECTIONS: dict[Any, Correction] = {
    **{func: correct for func, correct in cpu.CORRECTIONS.items() if func not in _CPU_KERNELS},
    aten.native_layer_norm.default: _statistics_in_float,
    aten.native_group_norm.default: lambda mode, args, out: _statistics_in_float(
        mode, args, cpu.CORRECTIONS[aten.native_group_norm.default](mode, args, out)),
    aten._scaled_dot_product_efficient_attention_backward.default: _own_heads,
}
INSTEAD: dict[Any, Correction] = {**cpu.INSTEAD, **recurrent.INSTEAD, **cells.INSTEAD}
if hasattr(aten, "_fused_rms_norm_backward"):
    INSTEAD[aten._fused_rms_norm.default] = _rms_norm
    INSTEAD[aten._fused_rms_norm_backward.default] = _rms_norm_backward
WHOLE: frozenset[Any] = frozenset(INSTEAD)
"""Operators that stay whole on a card, though there is a definition by others."""


def corrections(target: CudaTarget) -> Mapping[Any, Correction]:
    """Those of the version of torch that runs."""
    if target.torch_version >= _SECOND_FLASH:
        return CORRECTIONS
    return {**CORRECTIONS, aten._scaled_dot_product_flash_attention.default: _packed_rows}
