"""Results whose shape on fakes is not what the CPU kernel gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memfit.trace.kernels.recurrent import workspace_bytes

aten: Any = torch.ops.aten
_CPU = torch.device("cpu")
Correction = Callable[[Any, Any, Any], Any]


def _lstm_layer(mode: Any, args: Any, out: Any) -> Any:
    """oneDNN keeps a workspace for backward; the fake one is empty."""
    x, train = args[0], args[15]
    output, hidden, cell, _ = out
    size = workspace_bytes(x.shape[0], x.shape[1], x.shape[2], hidden.shape[-1]) if train else 0
    workspace = cast(Any, FakeTensor)(mode, torch.empty(size, dtype=torch.uint8, device="meta"), _CPU)
    return output, hidden, cell, workspace


def _laid_out_like(position: int) -> Correction:
    """The (first) result keeps the layout of that argument: channels last where it is; the fake one is contiguous."""

    def correct(mode: Any, args: Any, out: Any) -> Any:
        first, *others = out if isinstance(out, tuple) else (out,)
        if first is None or not _channels_last(args[position]) or first.dim() != 4:
            return out
        made = torch.empty(first.shape, dtype=first.dtype, device="meta", memory_format=torch.channels_last)
        first = FakeTensor(mode, made, _CPU)
        return (first, *others) if isinstance(out, tuple) else first

    return correct


def _layer_norm_backward(mode: Any, args: Any, out: Any) -> Any:
    """The kernel works on contiguous copies and gives a contiguous gradient; the fake one follows its argument."""
    first, *others = out
    if first is None or first.is_contiguous():
        return out
    return (FakeTensor(mode, torch.empty(first.shape, dtype=first.dtype, device="meta"), _CPU), *others)


def _channels_last(x: Any) -> bool:
    return bool(x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last))


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


CORRECTIONS: dict[Any, Correction] = {
    aten.mkldnn_rnn_layer.default: _lstm_layer,
    aten.native_group_norm.default: _laid_out_like(0),
    aten.native_group_norm_backward.default: _laid_out_like(1),
    aten.native_batch_norm_backward.default: _laid_out_like(1),
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.reflection_pad2d_backward.default: _laid_out_like(1),
    aten.replication_pad2d_backward.default: _laid_out_like(1),
    aten.channel_shuffle.default: _laid_out_like(0),
    aten.mse_loss.default: _keeps_elements,
    aten.smooth_l1_loss.default: _keeps_elements,
    aten.binary_cross_entropy.default: _keeps_elements,
    aten.col2im.default: _keeps_elements,
}
"""`correct(mode, args, out)` gives the result as the CPU kernel would."""

def _into(func: Any) -> Correction:
    """A product into a tensor that is there: where that has the product's shape, it is the result, and nobody need ask."""
    place = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}[func._overloadpacket.__name__]

    def into(mode: Any, args: Any, kwargs: Any) -> Any:
        left, right, out = args[place], args[place + 1], kwargs["out"]
        if out.shape == (*left.shape[:-1], right.shape[-1]):
            return out
        return mode.dispatch(func, (), args, kwargs)

    return into


INSTEAD: dict[Any, Correction] = {func: _into(func) for func in (
    aten.mm.out, aten.bmm.out, aten.addmm.out, aten.baddbmm.out)}
"""`make(mode, args, kwargs)` gives the result: where the fake kernel refuses what the CPU takes, or need not be asked."""
if hasattr(aten, "_grouped_mm"):
    INSTEAD[aten._grouped_mm.default] = _grouped_mm
