"""Values that decide shapes and branches on fake tensors: small integers and booleans keep theirs; the rest is policy."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch

aten: Any = torch.ops.aten
_LIMIT = 1 << 20  # elements of integer or boolean tensors whose value is kept
_FLOAT_LIMIT = 4096
_FACTORIES = {
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.linspace.default, aten.zeros.default,
    aten.ones.default, aten.full.default, aten.scalar_tensor.default, aten.eye.default, aten.tril_indices.default,
}
_DYNAMIC = {aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.unique_consecutive.default,
            aten.unique_dim.default, aten.repeat_interleave.Tensor, aten.bincount.default}
_ITEM = aten._local_scalar_dense.default
_EQUAL = aten.equal.default
_FALSE_OPS = ("lt", "le", "gt", "ge", "eq", "any", "isnan", "isinf", "bitwise_not", "logical_not")


class ValueTable:
    """Real values of fake tensors, kept on the fake itself, and the answers to `.item()` where there is none."""

    def remember(self, fake: Any, real: torch.Tensor) -> None:
        if worth_keeping(real):
            with no_dispatch():
                fake._memfit_value = real.detach()

    def answer(self, mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """What a value-dependent operator gives; NotImplemented for all others."""
        if func is _ITEM:
            return item(args[0])
        if func is _EQUAL:
            return True
        if func in _FACTORIES and _plain_device(kwargs):
            with no_dispatch():
                real = func(*args, **kwargs) if _small_factory(args) else None
            if real is None or not worth_keeping(real):
                return NotImplemented
            return _fake_of(mode, real)
        if func in _DYNAMIC or _boolean_index(func, args):
            real = _compute(func, args, kwargs)
            if real is not NotImplemented:
                return pytree.tree_map_only(torch.Tensor, lambda t: _fake_of(mode, t), real)
        return NotImplemented

    def propagate(self, mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Give `out` its value where every tensor argument has one."""
        if type(out) is not FakeTensor:
            return
        if _is_mutable(func):
            if hasattr(out, "_memfit_value"):
                del out._memfit_value
            return
        if out.is_floating_point() and out.numel() > _FLOAT_LIMIT:
            return
        first = next((a for a in args if isinstance(a, torch.Tensor)), None)
        if first is None or not hasattr(first, "_memfit_value") or _random(func):
            if out.dtype is torch.bool:
                out._memfit_maker = func._overloadpacket.__name__
            return
        real = _compute(func, args, kwargs)
        if isinstance(real, torch.Tensor) and real.shape == out.shape:
            self.remember(out, real)
        elif out.dtype is torch.bool:
            out._memfit_maker = func._overloadpacket.__name__


def worth_keeping(real: torch.Tensor) -> bool:
    """Integers and booleans decide shapes and branches; short float tensors are rates and schedules."""
    limit = _FLOAT_LIMIT if real.is_floating_point() or real.is_complex() else _LIMIT
    return real.numel() <= limit and real.device.type == "cpu"


def item(fake: Any) -> Any:
    """`.item()` of a fake. Known values answer; comparisons are False (a layer drawn with a random number stays, an
    overflow is not found), `all` is True, other numbers are 1: skipping an optimizer step would hide its memory."""
    value = getattr(fake, "_memfit_value", None)
    if value is None:
        value = getattr(fake, "constant", None)
    if value is not None:
        with no_dispatch():
            return value.item()
    if fake.dtype is torch.bool:
        maker = getattr(fake, "_memfit_maker", "")
        return not any(maker.startswith(name) for name in _FALSE_OPS)
    return 1.0 if fake.is_floating_point() else 1


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    flat, spec = pytree.tree_flatten((args, kwargs))
    for position, leaf in enumerate(flat):
        if isinstance(leaf, FakeTensor):
            value = getattr(leaf, "_memfit_value", leaf.constant)
            if value is None:
                return NotImplemented
            flat[position] = value
    real_args, real_kwargs = pytree.tree_unflatten(flat, spec)
    try:
        with no_dispatch(), torch.no_grad():
            return func(*real_args, **real_kwargs)
    except Exception:  # the fake goes on without a value
        return NotImplemented


def _fake_of(mode: Any, real: torch.Tensor) -> Any:
    fake = mode.from_tensor(real, static_shapes=True)
    fake._memfit_value = real
    return fake


def _boolean_index(func: Any, args: Any) -> bool:
    return func is aten.index.Tensor and any(
        isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _is_mutable(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and schema.is_mutable


def _random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _plain_device(kwargs: Any) -> bool:
    device = kwargs.get("device")
    return device is None or torch.device(device).type == "cpu"


def _small_factory(args: Any) -> bool:
    numel = 1
    for value in args[:1]:
        for side in value if isinstance(value, (list, tuple)) else ():
            numel *= int(side)
    return numel <= _FLOAT_LIMIT or not isinstance(args[0], (list, tuple))
