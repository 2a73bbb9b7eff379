"""The outputs of a linear layer, not computed until something needs them other than a cross entropy in chunks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from memfit.hooks.tensor_facts import FACTS
from memfit.strategies.exact.chunked_loss.cross_entropy import CrossEntropySettings, linear_cross_entropy
from memfit.strategies.exact.chunked_loss.logsumexp import linear_logsumexp


@dataclass(frozen=True)
class LinearCall:
    """A linear layer's call: `hidden` is [..., features]; outputs have `dtypes`, one cast after the other.

    `version` is the weight's: it must still be that when the outputs are asked for. `moved`: the classes stand in
    dimension 1, as `F.cross_entropy` wants them, instead of last.
    """

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    dtypes: tuple[torch.dtype, ...]
    rows: int
    version: int
    moved: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        lead, classes = tuple(self.hidden.shape[:-1]), self.weight.shape[0]
        return (lead[0], classes, *lead[1:]) if self.moved else (*lead, classes)

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Hidden, weight and bias in the layer's dtype (16 bit under autocast)."""
        if self.weight._version != self.version:
            raise RuntimeError("these logits were not computed before the weights changed: "
                               "use them before the optimizer steps")
        first = self.dtypes[0]
        return self.hidden.to(first), self.weight.to(first), None if self.bias is None else self.bias.to(first)

    def compute(self) -> torch.Tensor:
        """The outputs, whole."""
        with torch.autocast(self.hidden.device.type, enabled=False):
            full = F.linear(*self.operands())
        for dtype in self.dtypes[1:]:
            full = full.to(dtype)
        return full.movedim(-1, 1) if self.moved else full


class LazyLogits(torch.Tensor):
    """Looks like the outputs of a linear layer and has no memory. Reshaping, slicing rows, casting and moving the
    classes to dimension 1 stay lazy; `F.cross_entropy` and `logsumexp` run in chunks; everything else computes the outputs,
    once."""

    memfit_call: LinearCall
    memfit_full: torch.Tensor | None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        handler = _HANDLERS.get(func)
        if handler is not None and args and isinstance(args[0], LazyLogits):
            result = handler(*args, **kwargs)
            if result is not NotImplemented:
                return result
        args, kwargs = pytree.tree_map_only(LazyLogits, materialised, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(LazyLogits, lambda lazy: lazy.memfit_call.compute(), (args, kwargs or {}))
        return func(*args, **kwargs)  # below autograd, which sees `_Deferred`


def lazy_linear(module: nn.Linear, previous: Any, input: torch.Tensor, *, rows: int) -> torch.Tensor:
    """A forward for the last linear layer: its outputs as `LazyLogits`."""
    if input.dim() < 2 or previous is not None:
        return F.linear(input, module.weight, module.bias) if previous is None else previous(input)
    kind = input.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else module.weight.dtype
    return _lazy(LinearCall(input, module.weight, module.bias, (dtype,), rows, module.weight._version))


def materialised(lazy: LazyLogits) -> torch.Tensor:
    """The outputs as an ordinary tensor with its graph; computed once where there is a graph."""
    if not torch.is_grad_enabled():
        return lazy.memfit_call.compute()
    if lazy.memfit_full is None:
        lazy.memfit_full = lazy.memfit_call.compute()
    return lazy.memfit_full


class _Deferred(torch.autograd.Function):
    """Ties a `LazyLogits` to the graph, for code that takes it where Python cannot be asked (autograd functions)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, call: LinearCall
    ) -> torch.Tensor:
        ctx.call = replace(call, hidden=call.hidden.detach(), weight=call.weight.detach(),
                           bias=None if call.bias is None else call.bias.detach())
        return torch.Tensor._make_wrapper_subclass(
            LazyLogits, call.shape, dtype=call.dtypes[-1], device=hidden.device, storage_size=0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        call = ctx.call
        leaves = [None if one is None else one.detach().requires_grad_(need) for one, need in
                  zip((call.hidden, call.weight, call.bias), ctx.needs_input_grad, strict=False)]
        with torch.enable_grad():
            full = replace(call, hidden=leaves[0], weight=leaves[1], bias=leaves[2]).compute()
        wanted = [one for one in leaves if one is not None and one.requires_grad]
        found = iter(torch.autograd.grad(full, wanted, grad_outputs))
        return (*(next(found) if one is not None and one.requires_grad else None for one in leaves), None)


def _lazy(call: LinearCall) -> LazyLogits:
    lazy: Any = _Deferred.apply(call.hidden, call.weight, call.bias, call)
    lazy.memfit_call, lazy.memfit_full = call, None
    return lazy


def _with_hidden(lazy: LazyLogits, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The lazy result of an operation that leaves the last dimension, the classes, alone."""
    if lazy.memfit_call.moved:
        return NotImplemented
    return _lazy(replace(lazy.memfit_call, hidden=change(lazy.memfit_call.hidden)))


def _view(lazy: LazyLogits, *shape: Any) -> Any:
    if not shape or isinstance(shape[0], torch.dtype):
        return NotImplemented
    *lead, last = shape[0] if isinstance(shape[0], (tuple, list)) else shape
    rows = lazy.memfit_call.hidden.shape[:-1].numel()
    inferred = last == -1 and -1 not in lead and math.prod(lead) == rows
    if not lead or not (inferred or last == lazy.memfit_call.weight.shape[0]):
        return NotImplemented
    return _with_hidden(lazy, lambda hidden: hidden.reshape(*lead, hidden.shape[-1]))


def _flatten(lazy: LazyLogits, start_dim: int = 0, end_dim: int = -1) -> Any:
    if end_dim % lazy.ndim == lazy.ndim - 1:
        return NotImplemented
    return _with_hidden(lazy, lambda hidden: hidden.flatten(start_dim % lazy.ndim, end_dim % lazy.ndim))


def _index(lazy: LazyLogits, index: Any) -> Any:
    items = index if isinstance(index, tuple) else (index,)
    if any(isinstance(one, (bool, list)) for one in items) or items[-1] is None:
        return NotImplemented
    used = sum(_dimensions(one) for one in items)
    open_end = any(one is Ellipsis for one in items) and items[-1] is not Ellipsis
    takes_all = isinstance(items[-1], slice) and items[-1] == slice(None)
    if (used >= lazy.ndim or open_end) and not takes_all:
        return NotImplemented
    return _with_hidden(lazy, lambda hidden: hidden[index])


def _dimensions(item: Any) -> int:
    """How many dimensions one item of an index uses up."""
    if item is None or item is Ellipsis:
        return 0
    return item.dim() if isinstance(item, torch.Tensor) and item.dtype == torch.bool else 1


def _transpose(lazy: LazyLogits, dim0: int, dim1: int) -> Any:
    places = {dim0 % lazy.ndim, dim1 % lazy.ndim}
    if lazy.ndim - 1 not in places:
        return _with_hidden(lazy, lambda hidden: hidden.transpose(dim0, dim1))
    return _moved(lazy) if places == {1, 2} and lazy.ndim == 3 else NotImplemented


def _permute(lazy: LazyLogits, *dims: Any) -> Any:
    order = [int(one) % lazy.ndim for one in (dims[0] if isinstance(dims[0], (tuple, list)) else dims)]
    if order[-1] == lazy.ndim - 1:
        return _with_hidden(lazy, lambda hidden: hidden.permute(order))
    return _moved(lazy) if order == [0, lazy.ndim - 1, *range(1, lazy.ndim - 1)] else NotImplemented


def _moved(lazy: LazyLogits) -> Any:
    return NotImplemented if lazy.memfit_call.moved else _lazy(replace(lazy.memfit_call, moved=True))


def _cast(lazy: LazyLogits, dtype: torch.dtype) -> LazyLogits:
    call = lazy.memfit_call
    return lazy if call.dtypes[-1] == dtype else _lazy(replace(call, dtypes=(*call.dtypes, dtype)))


def _to(lazy: LazyLogits, *args: Any, **kwargs: Any) -> Any:
    for one in (*args, *(kwargs.get(name) for name in ("dtype", "device", "other"))):
        device: Any = one.device if isinstance(one, torch.Tensor) else one
        if isinstance(device, (str, torch.device)) and torch.device(device).type != lazy.device.type:
            return NotImplemented
    dtypes = [one.dtype if isinstance(one, torch.Tensor) else one for one in (*args, *kwargs.values())]
    found = [one for one in dtypes if isinstance(one, torch.dtype)]
    return _cast(lazy, found[0]) if found else lazy


def _detach(lazy: LazyLogits) -> LazyLogits:
    call = lazy.memfit_call
    return _lazy(replace(call, hidden=call.hidden.detach(), weight=call.weight.detach(),
                         bias=None if call.bias is None else call.bias.detach()))


def _argmax(lazy: LazyLogits, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None or dim % lazy.ndim != lazy.ndim - 1 or lazy.memfit_call.moved:
        return NotImplemented
    call = lazy.memfit_call
    with torch.no_grad():
        chunks = call.hidden.flatten(0, -2).split(call.rows)
        found = [replace(call, hidden=chunk).compute().argmax(-1) for chunk in chunks]
    best = torch.cat(found).reshape(lazy.shape[:-1])
    return best.unsqueeze(-1) if keepdim else best


def _cross_entropy(
    lazy: LazyLogits, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:
    call = lazy.memfit_call
    plain = weight is None and size_average is None and reduce is None and reduction in ("mean", "sum")
    if not plain or not isinstance(target, torch.Tensor) or target.is_floating_point():
        return NotImplemented
    if target.shape != call.hidden.shape[:-1] or not (call.moved or lazy.ndim == 2):
        return NotImplemented
    settings = CrossEntropySettings(call.rows, ignore_index, reduction == "mean", label_smoothing,
                                    gradients=torch.is_grad_enabled())
    hidden, matrix, bias = call.operands()
    loss = linear_cross_entropy(hidden.flatten(0, -2), matrix, bias, target.flatten().long(), settings)
    wide = torch.float32 if torch.is_autocast_enabled(lazy.device.type) else call.dtypes[-1]
    return loss.to(torch.promote_types(wide, call.dtypes[-1]))


def _logsumexp(lazy: LazyLogits, dim: Any = None, keepdim: bool = False) -> Any:
    call = lazy.memfit_call
    dims = dim if isinstance(dim, (tuple, list)) else (dim,)
    classes = 1 if call.moved else lazy.ndim - 1
    if len(dims) != 1 or not isinstance(dims[0], int) or dims[0] % lazy.ndim != classes:
        return NotImplemented
    sums = linear_logsumexp(call.operands()[0].flatten(0, -2), *call.operands()[1:], call.rows)
    sums = sums.reshape(call.hidden.shape[:-1]).to(call.dtypes[-1])
    return sums.unsqueeze(classes) if keepdim else sums


_T = torch.Tensor

_HANDLERS: dict[Any, Callable[..., Any]] = {
    F.cross_entropy: _cross_entropy, _T.logsumexp: _logsumexp, torch.logsumexp: _logsumexp,
    _T.view: _view, _T.reshape: _view, torch.reshape: _view, _T.flatten: _flatten, torch.flatten: _flatten,
    _T.__getitem__: _index, _T.transpose: _transpose, torch.transpose: _transpose, _T.swapaxes: _transpose,
    _T.permute: _permute, torch.permute: _permute,
    _T.contiguous: lambda lazy, **_: lazy, _T.clone: lambda lazy, **_: lazy,
    _T.to: _to, _T.type: _to, _T.detach: _detach, _T.argmax: _argmax, torch.argmax: _argmax,
    _T.float: lambda lazy, **_: _cast(lazy, torch.float32), _T.double: lambda lazy, **_: _cast(lazy, torch.float64),
    _T.bfloat16: lambda lazy, **_: _cast(lazy, torch.bfloat16), _T.half: lambda lazy, **_: _cast(lazy, torch.float16),
}
