"""Results whose shape on fakes is not what the CPU kernel gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memfit.trace.kernels.recurrent import workspace_bytes

aten: Any = torch.ops.aten
_CPU = torch.device("cpu")


def _lstm_layer(mode: Any, args: Any, out: Any) -> Any:
    """oneDNN keeps a workspace for backward; the fake one is empty."""
    x, train = args[0], args[15]
    output, hidden, cell, _ = out
    size = workspace_bytes(x.shape[0], x.shape[1], x.shape[2], hidden.shape[-1]) if train else 0
    workspace = cast(Any, FakeTensor)(mode, torch.empty(size, dtype=torch.uint8, device="meta"), _CPU)
    return output, hidden, cell, workspace


def _group_norm(mode: Any, args: Any, out: Any) -> Any:
    """Channels-last images stay so; the fake ones come out contiguous."""
    x, (y, mean, rstd) = args[0], out
    if x.dim() != 4 or x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
        return out
    made = torch.empty(y.shape, dtype=y.dtype, device="meta", memory_format=torch.channels_last)
    return FakeTensor(mode, made, _CPU), mean, rstd


def _keeps_elements(mode: Any, args: Any, out: Any) -> Any:
    """The kernel makes its result as large as its input and then shrinks it: the storage stays as large."""
    x = args[0]
    if out.numel() >= x.numel():
        return out
    whole = torch.empty(x.numel(), dtype=out.dtype, device="meta")
    return FakeTensor(mode, whole.as_strided(out.shape, out.stride()), _CPU)


def _grouped_mm(mode: Any, args: Any, kwargs: Any) -> Any:
    """One product for each expert's rows. The fake one takes bf16 only; the CPU takes any floating type."""
    a, b = args[:2]
    offsets = args[2] if len(args) > 2 else kwargs.get("offs")
    if a.dim() == 2 and b.dim() == 2:
        shape = [offsets.shape[0], a.shape[0], b.shape[1]]
    elif a.dim() == 3 and b.dim() == 3:
        shape = [a.shape[0], a.shape[1], b.shape[2]]
    else:
        shape = [a.shape[-2], b.shape[-1]]
    return FakeTensor(mode, torch.empty(shape, dtype=kwargs.get("out_dtype") or a.dtype, device="meta"), _CPU)


CORRECTIONS: dict[Any, Callable[[Any, Any, Any], Any]] = {
    aten.mkldnn_rnn_layer.default: _lstm_layer,
    aten.native_group_norm.default: _group_norm,
    aten.mse_loss.default: _keeps_elements,
    aten.smooth_l1_loss.default: _keeps_elements,
    aten.binary_cross_entropy.default: _keeps_elements,
    aten.col2im.default: _keeps_elements,
}
"""`correct(mode, args, out)` gives the result as the CPU kernel would."""

INSTEAD: dict[Any, Callable[[Any, Any, Any], Any]] = {}
"""`make(mode, args, kwargs)` gives the result where the fake kernel refuses what the CPU takes."""
if hasattr(aten, "_grouped_mm"):
    INSTEAD[aten._grouped_mm.default] = _grouped_mm
