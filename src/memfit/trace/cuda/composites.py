"""Operators that are made of others, and of other ones on a card than on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from memfit.trace.cuda.registering import Overrides, composite
from memfit.trace.cuda.target import CudaTarget

aten: Any = torch.ops.aten
_CUDNN_EPSILON = 1e-5
_CUDNN_MOST_SAMPLES = 880_801
_FUSED_RMS_NORM = (2, 9)


def register(overrides: Overrides, target: CudaTarget) -> None:
    """Put them in place for the time of a trace."""
    overrides.add_on_fakes("dropout", aten.dropout.default, _dropout)
    overrides.add_on_fakes("softmax.int", aten.softmax.int, _softmax)
    overrides.add_on_fakes("log_softmax.int", aten.log_softmax.int, _log_softmax)
    overrides.add_on_fakes("batch_norm", aten.batch_norm.default, _batch_norm)
    if hasattr(aten, "_fused_rms_norm_backward") and target.torch_version >= _FUSED_RMS_NORM:
        overrides.add_on_fakes("rms_norm", aten.rms_norm.default, _rms_norm)
        overrides.add("_fused_rms_norm", _fused_rms_norm_of_real, "CPU")


def _dropout(x: torch.Tensor, p: float, train: bool) -> Any:
    """One kernel, which leaves a mask of a byte an element."""
    if train and 0 < p < 1 and x.numel():
        return aten.native_dropout.default(x, p, True)[0]
    return composite(aten.dropout.default, x, p, train)


def _softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _reduced_to_float(aten._softmax.default, aten.softmax.int, x, dim, dtype)


def _log_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _reduced_to_float(aten._log_softmax.default, aten.log_softmax.int, x, dim, dtype)


def _reduced_to_float(kernel: Any, whole: Any, x: torch.Tensor, dim: int, dtype: torch.dtype | None) -> Any:
    """From half to float in one kernel (not from bfloat16)."""
    if x.dtype is torch.float16 and dtype is torch.float32:
        return kernel(x, dim, True)
    return composite(whole, x, dim, dtype)


def _rms_norm(x: torch.Tensor, shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None) -> Any:
    if weight is not None and weight.dtype != x.dtype:
        return composite(aten.rms_norm.default, x, shape, weight, eps)
    return aten._fused_rms_norm.default(x, shape, weight, eps)[0]


def _fused_rms_norm_of_real(*args: Any) -> Any:
    """With a kernel for its device an operator keeps its own gradient formula, instead of those of its parts."""
    return composite(aten._fused_rms_norm.default, *args)


def _batch_norm(x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float,
                eps: float, cudnn_enabled: bool) -> Any:
    """cuDNN's kernel where it takes the call; else torch's own, which saves the same."""
    if _for_cudnn(x, weight, bias, mean, var, training, eps, cudnn_enabled):
        dense = x.contiguous(memory_format=_layout(x))
        return aten.cudnn_batch_norm.default(dense, weight, bias, mean, var, training, momentum, eps)[0]
    return aten.native_batch_norm.default(x, weight, bias, mean, var, training, momentum, eps)[0]


def _for_cudnn(x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, eps: float,
               enabled: bool) -> bool:
    given = all(tensor is not None for tensor in (weight, bias)) and (training or (mean is not None and var is not None))
    paired = (mean is None) == (var is None)
    few = x.shape[0] <= (_CUDNN_MOST_SAMPLES if training else 65_535)
    return bool(enabled and given and paired and few and x.dim() >= 3 and x.dtype is not torch.bfloat16
                and x.dtype is not torch.float64 and eps >= _CUDNN_EPSILON and x.numel())


def _layout(x: torch.Tensor) -> torch.memory_format:
    for layout, sides in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
        if x.dim() == sides and x.is_contiguous(memory_format=layout) and not x.is_contiguous():
            return layout
    return torch.contiguous_format
