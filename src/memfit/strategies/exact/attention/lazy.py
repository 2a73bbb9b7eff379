"""Attention scores that are not computed until something needs them other than a softmax and the product with the values."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from memfit.hooks.tensor_facts import FACTS
from memfit.strategies.exact.attention.call import Call, Draw, Masking, version


@dataclass(frozen=True)
class Origin:
    """How a tensor is made the way the user wrote it: `func(*args, **kwargs)`, among them other lazy tensors."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: bool
    autocast: tuple[str, bool, torch.dtype]

    def make(self) -> torch.Tensor:
        kind, enabled, dtype = self.autocast
        with torch.set_grad_enabled(self.gradients), _autocast(kind, dtype, enabled):
            return self.func(*_computed(self.args), **_computed(self.kwargs))


class Lazy(torch.Tensor):
    """Looks like attention scores, or their softmax, and has no memory. Scaling, masking, softmax, dropout and casts stay
    lazy; the product with the values is one fused call; everything else computes the tensor as it was written, once."""

    memfit_call: Call | None
    memfit_origin: Origin | None
    memfit_full: torch.Tensor | None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        handler = _HANDLERS.get(func)
        if handler is not None:
            result = handler(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return func(*_computed(args), **_computed(kwargs))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_computed(args), **_computed(kwargs or {}))


class _Tie(torch.autograd.Function):
    """Gives a lazy tensor its place in the graph, so that one that goes where it cannot be asked fails."""

    @staticmethod
    def forward(ctx: Any, left: torch.Tensor, right: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.Tensor._make_wrapper_subclass(Lazy, shape, dtype=dtype, device=left.device, storage_size=0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        raise RuntimeError("attention weights went through code that the attention strategy cannot follow (an autograd "
                           "function, a backward hook): leave the module out of the plan's attention modules")


def lazy(call: Call, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lazy:
    """A lazy tensor for `func(*args, **kwargs)`."""
    made: Any = _Tie.apply(call.left, call.right, call.shape, call.dtype)
    made.memfit_call, made.memfit_origin, made.memfit_full = call, _origin(call.left, func, args, kwargs), None
    return made


def weights_of(
    query: torch.Tensor, shape: tuple[int, ...], func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Lazy:
    """Weights that nothing is known of but how to compute them."""
    made: Any = _Tie.apply(query, query, shape, query.dtype)
    made.memfit_call, made.memfit_origin, made.memfit_full = None, _origin(query, func, args, kwargs), None
    return made


def product(func: Any, left: Any, right: Any) -> Any:
    """The product of two batches of matrices, as a lazy tensor where it may be attention scores."""
    if not (_is_plain(left) and _is_plain(right)) or left.dim() not in (3, 4) or left.dim() != right.dim():
        return NotImplemented
    if left.shape[:-2] != right.shape[:-2] or left.shape[-1] != right.shape[-2] or left.dtype != right.dtype:
        return NotImplemented
    if not left.is_floating_point() or left.device != right.device or left.shape.numel() == 0:
        return NotImplemented
    kind = left.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else left.dtype
    call = Call(left, right, (*left.shape[:-1], right.shape[-1]), dtype,
                versions=tuple((one, version(one)) for one in (left, right)))
    return lazy(call, func, (left, right), {})


def computed(one: Lazy) -> torch.Tensor:
    """The tensor as the user wrote it, with its graph. Raises RuntimeError where a kernel has dropped some of it already."""
    if one.memfit_full is None:
        assert one.memfit_origin is not None
        call = one.memfit_call
        if call is not None:
            call.check()
            if call.draw is not None:
                if call.draw.fused:
                    raise RuntimeError("attention weights were used again after dropout inside of a fused kernel: leave the "
                                       "module out of the plan's attention modules")
                call.draw.drawn = True
        one.memfit_full = one.memfit_origin.make()
        one.memfit_call = one.memfit_origin = None
    return one.memfit_full


def _computed(tree: Any) -> Any:
    return pytree.tree_map_only(Lazy, computed, tree)


def _origin(like: torch.Tensor, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Origin:
    kind = like.device.type
    return Origin(func, args, kwargs, torch.is_grad_enabled(),
                  (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)))


def _autocast(kind: str, dtype: torch.dtype, enabled: bool) -> AbstractContextManager[Any]:
    return torch.autocast(kind, dtype=dtype, enabled=enabled)


def _is_plain(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and not isinstance(value, Lazy)


# -- what stays lazy: (func, args, kwargs) -> result or NotImplemented -------------------------------------------------------


def _changes(change: Callable[..., Call | None], *, in_place: bool = False) -> Callable[..., Any]:
    """A handler that gives the lazy tensor of `change(call, *args, **kwargs)`; in place, that becomes the tensor itself."""
    signature = inspect.signature(change)

    def handler(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        place = next((i for i, one in enumerate(args) if isinstance(one, Lazy)), None)
        if place is None or args[place].memfit_call is None:
            return NotImplemented
        others = (*args[:place], *args[place + 1:])
        if (place and change not in _COMMUTE) or any(isinstance(one, Lazy) for one in others):
            return NotImplemented
        target = args[place]
        try:
            asked = signature.bind(target.memfit_call, *others, **kwargs)
        except TypeError:  # a form of the call that is not known here
            return NotImplemented
        call = change(*asked.args, **asked.kwargs)
        if call is None:
            return NotImplemented
        if call is target.memfit_call:
            return target
        if not in_place:
            return lazy(call, func, args, kwargs)
        before = lazy(target.memfit_call, None, (), {})
        before.memfit_origin = target.memfit_origin
        target.memfit_origin = _origin(call.left, func, (*args[:place], before, *args[place + 1:]), kwargs)
        target.memfit_call = call
        return target

    return handler


def _scale(call: Call, factor: Any, inverse: bool = False) -> Call | None:
    if call.weights or call.masks:
        return None
    if isinstance(factor, (int, float)) and not isinstance(factor, bool):
        if not factor or not math.isfinite(factor):
            return None
        return replace(call, scale=call.scale / factor if inverse else call.scale * factor)
    if _is_plain(factor) and factor.dim() == 0 and factor.dtype == call.left.dtype == call.dtype:
        left = call.left / factor if inverse else call.left * factor
        return replace(call, left=left, versions=(*call.versions, (factor, version(factor))))
    return None


def _divide(call: Call, factor: Any) -> Call | None:
    return _scale(call, factor, inverse=True)


def _add(call: Call, mask: Any, *, alpha: float = 1) -> Call | None:
    return call.masked(Masking(mask)) if _is_plain(mask) and alpha == 1 else None


def _fill(call: Call, mask: Any, value: Any) -> Call | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return call.masked(Masking(mask, float(value))) if known and _is_plain(mask) else None


def _softmax(
    call: Call, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None
) -> Call | None:
    if call.weights or dim is None or dim % len(call.shape) != len(call.shape) - 1:
        return None
    kind = call.left.device.type
    wide = kind == "cuda" and torch.is_autocast_enabled(kind)  # a card's autocast takes softmax in float32
    return replace(call, weights=True, dtype=dtype or (torch.float32 if wide else call.dtype))


def _tensor_softmax(call: Call, dim: int | None = None, dtype: torch.dtype | None = None) -> Call | None:
    return _softmax(call, dim, dtype=dtype)


def _dropout(call: Call, p: float = 0.5, training: bool = True, inplace: bool = False) -> Call | None:
    if not call.weights or call.draw is not None or inplace:
        return None
    return replace(call, dropout=p, draw=Draw()) if training and p > 0 else call


def _cast(call: Call, dtype: torch.dtype) -> Call:
    return call if dtype == call.dtype else replace(call, dtype=dtype)


def _to(call: Call, *args: Any, **kwargs: Any) -> Call | None:
    if len(args) + len(kwargs) != 1:
        return None
    (wanted,) = (*args, *kwargs.values())
    dtype = wanted.dtype if _is_plain(wanted) and wanted.device == call.left.device else wanted
    return _cast(call, dtype) if isinstance(dtype, torch.dtype) and dtype.is_floating_point else None


def _type_as(call: Call, other: Any) -> Call | None:
    return _to(call, other)


def _view(call: Call, *shape: Any) -> Call | None:
    if not shape or isinstance(shape[0], torch.dtype):
        return None
    *lead, rows, columns = shape[0] if isinstance(shape[0], (tuple, list)) else shape
    batch = call.shape[:-2]
    known = math.prod(one for one in lead if one != -1)
    if (rows, columns) != call.shape[-2:] or lead.count(-1) > 1 or not 1 <= len(lead) <= 2 or not known:
        return None
    full = tuple(math.prod(batch) // known if one == -1 else one for one in lead)
    return replace(call, shape=(*full, rows, columns)) if math.prod(full) == math.prod(batch) else None


def _where(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs or len(args) != 3 or not isinstance(args[1], Lazy) or args[1].memfit_call is None or not _is_plain(args[0]):
        return NotImplemented
    if isinstance(args[2], torch.Tensor) or args[0].dtype != torch.bool:
        return NotImplemented
    call = _fill(args[1].memfit_call, ~args[0], args[2])
    return NotImplemented if call is None else lazy(call, func, args, kwargs)


def _product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The product of weights and values: the fused call."""
    if kwargs or len(args) != 2 or not isinstance(args[0], Lazy) or not _is_plain(args[1]):
        return NotImplemented
    return attended(args[0], args[1])


def attended(weights: Lazy, value: torch.Tensor) -> Any:
    """`weights @ value` by one call, or NotImplemented."""
    call = weights.memfit_call
    if call is None or not call.serves(value):
        return NotImplemented
    if call.draw is not None and call.draw.drawn:
        return NotImplemented
    if call.draw is not None and call.draw.fused:
        computed(weights)  # raises: the same draw cannot be had twice
    out = call.fused(value)
    return NotImplemented if out is None else out


def _same(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if isinstance(args[0], Lazy) and args[0].memfit_call is not None else NotImplemented


_COMMUTE = (_scale, _add)

_T = torch.Tensor

_FACTS = FACTS | {_T.is_inference}

PRODUCTS: set[Any] = {torch.matmul, torch.bmm, _T.matmul, _T.bmm, _T.__matmul__}

_HANDLERS: dict[Any, Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = {
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys((_T.mul, _T.__mul__, _T.__rmul__, torch.mul, torch.multiply), _changes(_scale)),
    **dict.fromkeys((_T.div, _T.__truediv__, torch.div, torch.true_divide), _changes(_divide)),
    **dict.fromkeys((_T.add, _T.__add__, _T.__radd__, torch.add), _changes(_add)),
    **dict.fromkeys((_T.mul_, _T.__imul__), _changes(_scale, in_place=True)),
    **dict.fromkeys((_T.div_, _T.__itruediv__), _changes(_divide, in_place=True)),
    **dict.fromkeys((_T.add_, _T.__iadd__), _changes(_add, in_place=True)),
    **dict.fromkeys((_T.masked_fill, torch.masked_fill), _changes(_fill)),
    _T.masked_fill_: _changes(_fill, in_place=True),
    torch.where: _where,
    F.softmax: _changes(_softmax),
    **dict.fromkeys((_T.softmax, torch.softmax), _changes(_tensor_softmax)),
    **dict.fromkeys((F.dropout, torch.dropout), _changes(_dropout)),
    _T.to: _changes(_to), _T.type: _changes(_to), _T.type_as: _changes(_type_as),
    _T.float: _changes(lambda call: _cast(call, torch.float32)), _T.double: _changes(lambda call: _cast(call, torch.float64)),
    _T.half: _changes(lambda call: _cast(call, torch.float16)),
    _T.bfloat16: _changes(lambda call: _cast(call, torch.bfloat16)),
    **dict.fromkeys((_T.view, _T.reshape, torch.reshape), _changes(_view)),
    _T.contiguous: _same,
}
