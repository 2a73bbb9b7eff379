"""Values that decide shapes and branches on fake tensors: small integers and booleans keep theirs; the rest is policy.

A value belongs to a storage, so views see it and a write reaches all of them. It is dropped with a write of something
unknown, and dies with the storage.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch

aten: Any = torch.ops.aten
SMALL = 1 << 20  # elements of tensors whose values are kept
_FILLED_FLOATS = 1024  # elements of floating tensors that are filled: more of them become activations and states
_FACTORIES = {
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.linspace.default, aten.zeros.default,
    aten.ones.default, aten.full.default, aten.scalar_tensor.default, aten.eye.default, aten.eye.m,
    aten.tril_indices.default, aten.triu_indices.default,
}
_LIKE = {
    aten.zeros_like.default: 0, aten.new_zeros.default: 0, aten.zero_.default: 0,
    aten.ones_like.default: 1, aten.new_ones.default: 1,
}
_FILLED = {aten.full_like.default: 1, aten.new_full.default: 2, aten.fill_.Scalar: 1}  # position of the value
_ITEM = aten._local_scalar_dense.default
_EQUAL = aten.equal.default
_FALSE = ("lt", "le", "gt", "ge", "eq", "ne", "any", "isnan", "isinf", "bitwise_not", "logical_not")
_UNSET = ("empty", "new_empty")  # give whatever was in memory
_MASKS = (torch.bool, torch.uint8)
_LIFTS = {aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default}
SPECIAL = {*_FACTORIES, *_LIKE, *_FILLED, *_LIFTS, _ITEM, _EQUAL, aten.index.Tensor}


def keep(fake: torch.Tensor, real: torch.Tensor) -> None:
    """Remember a copy of a real tensor's value for the storage of `fake` (and all its views), if it is small enough."""
    if not worth_keeping(real) or real.layout != torch.strided:
        return
    storage: Any = fake.untyped_storage()
    whole = fake.numel() * fake.element_size() == storage.nbytes() and fake.is_contiguous()
    with no_dispatch():
        if whole:
            storage._memfit_value = real.detach().clone(memory_format=torch.contiguous_format)
        elif getattr(storage, "_memfit_value", None) is not None:
            known: Any = value_of(fake)
            known.copy_(real)


def value_of(tensor: Any) -> torch.Tensor | None:
    """The value of a fake tensor as a real one (a view of what is kept), or None."""
    if type(tensor) is not FakeTensor:
        return tensor.detach() if worth_keeping(tensor) else None
    kept = getattr(tensor.untyped_storage(), "_memfit_value", None)
    if kept is None:
        return None
    with no_dispatch():
        if kept.dtype != tensor.dtype:
            kept = kept.view(-1).view(tensor.dtype)
        return kept.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def forget(tensor: torch.Tensor) -> None:
    """Something unknown was written to the tensor's storage."""
    storage: Any = tensor.untyped_storage()
    if getattr(storage, "_memfit_value", None) is not None:
        storage._memfit_value = None


def worth_keeping(real: torch.Tensor) -> bool:
    """Values that may decide shapes and branches: masks, positions, rates, schedules, step counters."""
    return real.numel() <= SMALL and real.device.type == "cpu"


def answer(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """What a value-dependent operator gives (`.item()`, `nonzero`, a boolean index); NotImplemented for all others."""
    if func is _ITEM:
        return item(args[0])
    if func is _EQUAL:
        one, other = value_of(args[0]), value_of(args[1])
        return True if one is None or other is None else _real(torch.equal, (one, other))
    if func is aten.masked_select.default and type(args[0]) is FakeTensor:
        mask = value_of(args[1])
        picked = 0 if mask is None else int(_real(torch.Tensor.sum, (mask.expand(args[0].shape),)))
        return NotImplemented if mask is None else _empty(mode, (picked,), args[0].dtype)
    real = _compute(func, args, kwargs) if _counts_elements(func, args) else NotImplemented
    return NotImplemented if real is NotImplemented else pytree.tree_map_only(torch.Tensor, lambda t: _fake_of(mode, t), real)


def with_masks_counted(mode: Any, func: Any, args: Any) -> Any:
    """The arguments of `x[mask]`, with masks of known value turned into the positions that they pick."""
    if func is not aten.index.Tensor or not _counts_elements(func, args):
        return args
    indices: list[Any] = []
    for index in args[1]:
        mask = value_of(index) if isinstance(index, torch.Tensor) and index.dtype in _MASKS else None
        if mask is None:
            indices.append(index)
        else:
            indices += [_fake_of(mode, place) for place in _real(torch.Tensor.nonzero, (mask,)).unbind(1)]
    return (args[0], indices)


def _counts_elements(func: Any, args: Any) -> bool:
    return func is not aten.index.Tensor or any(isinstance(i, torch.Tensor) and i.dtype in _MASKS for i in args[1])


def after(func: Any, facts: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Give what an operator made its value where that is known; a write of something unknown forgets."""
    if func in SPECIAL and _made_by_rule(func, args, kwargs, out):
        return
    if facts.mutable:
        _after_write(func, args, kwargs)
        return
    first: Any = out[0] if isinstance(out, (list, tuple)) and out else out
    if type(first) is not FakeTensor or first.layout != torch.strided or _is_view(first, args):
        return
    if _worth(first) and not facts.random and not facts.name.startswith(_UNSET) and _begins_known(args):
        real = _compute(func, args, kwargs)
        if real is not NotImplemented:
            for fake, value in zip(pytree.tree_leaves(out), pytree.tree_leaves(real), strict=False):
                if isinstance(value, torch.Tensor) and value.shape == fake.shape:
                    keep(fake, value)
            return
    if first.dtype is torch.bool:
        setattr(first, "_memfit_maker", facts.name)  # noqa: B010 - an attribute that the class does not declare


def item(fake: Any) -> Any:
    """`.item()` of a fake. Known values answer; comparisons are False (a layer drawn with a random number stays, an
    overflow is not found), `all` is True, other numbers are 1: skipping an optimizer step would hide its memory."""
    value = value_of(fake)
    if value is not None:
        return _real(torch.Tensor.item, (value,))
    if fake.dtype is torch.bool:
        return not getattr(fake, "_memfit_maker", "").startswith(_FALSE)
    return 1.0 if fake.is_floating_point() else 1


def _made_by_rule(func: Any, args: Any, kwargs: Any, out: Any) -> bool:
    if func in _LIFTS:
        if type(args[0]) is not FakeTensor:
            keep(out, args[0])
        return True
    fill = _LIKE.get(func)
    if fill is None and func in _FILLED:
        position = _FILLED[func]
        fill = args[position] if len(args) > position else None
    if fill is not None:
        if _worth(out, _FILLED_FLOATS):
            keep(out, _real(torch.full, (tuple(out.shape), fill), {"dtype": out.dtype, "device": "cpu"}))
        else:
            forget(out)
        return True
    if func in _FACTORIES and _worth(out, _FILLED_FLOATS) and out.fake_device.type == "cpu":
        keep(out, _real(func, args, kwargs))
        return True
    return False


def _after_write(func: Any, args: Any, kwargs: Any) -> None:
    written = [t for t in _written(args) if getattr(t.untyped_storage(), "_memfit_value", None) is not None]
    if written and (torch.Tag.nondeterministic_seeded in func.tags or _compute(func, args, kwargs) is NotImplemented):
        for tensor in written:
            forget(tensor)


def _written(args: Any) -> list[Any]:
    """The tensors that an in-place operator writes: its first argument (a list for foreach operators)."""
    first = args[0] if args else None
    return [t for t in (first if isinstance(first, (list, tuple)) else [first]) if type(t) is FakeTensor]


def _compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Do it for real on the known values; NotImplemented where one is unknown."""
    flat, spec = pytree.tree_flatten((args, kwargs))
    for position, leaf in enumerate(flat):
        if isinstance(leaf, torch.Tensor):
            value = value_of(leaf)
            if value is None:
                return NotImplemented
            flat[position] = value
    real_args, real_kwargs = pytree.tree_unflatten(flat, spec)
    try:
        return _real(func, real_args, real_kwargs)
    except Exception:  # the fake goes on without a value
        return NotImplemented


def _real(func: Any, args: Any, kwargs: Any = None) -> Any:
    with no_dispatch(), torch.no_grad():
        return func(*args, **(kwargs or {}))


def _fake_of(mode: Any, real: torch.Tensor) -> Any:
    fake = _empty(mode, real.shape, real.dtype)
    keep(fake, real)
    return fake


def _empty(mode: Any, shape: Any, dtype: torch.dtype) -> Any:
    return FakeTensor(mode, torch.empty(shape, dtype=dtype, device="meta"), torch.device("cpu"))


def _is_view(out: Any, args: Any) -> bool:
    """A view of a storage whose value is kept (or not) already."""
    cdata = out.untyped_storage()._cdata
    return any(type(arg) is FakeTensor and arg.untyped_storage()._cdata == cdata for arg in args)


def _begins_known(args: Any) -> bool:
    """Whether the first tensor's value is known: mostly it is not, and that ends it."""
    first = next((arg for arg in args if type(arg) is FakeTensor), None)
    return first is not None and getattr(first.untyped_storage(), "_memfit_value", None) is not None


def _worth(fake: Any, floats: int = SMALL) -> bool:
    return bool(fake.numel() <= (floats if fake.is_floating_point() else SMALL))
