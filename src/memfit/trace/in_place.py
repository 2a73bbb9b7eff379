"""Where torch works in place on real tensors, but not on tensor subclasses or while a dispatch mode is active.

A gradient that meets another in the engine is added into it, if it is dense, no view, and nobody else holds it. Some backward
formulas scatter into the zeros that they just made. `F.linear` and attention add bias and mask into the product that
they just made. Who holds a tensor is read off reference counts, which differ from one version of torch to the next:
what they are for a tensor that only the engine holds is measured at first use.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch.autograd import graph

aten: Any = torch.ops.aten
PRODUCTS = {aten.mm.default, aten.bmm.default}
ADD = aten.add.Tensor
IN_PLACE: dict[Any, Any] = {
    ADD: aten.add_.Tensor,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter.src: aten.scatter_.src,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.put.default: aten.put_.default,
}
_LOSS = "BinaryCrossEntropyWithLogitsBackward0"  # scales the gradient that it just made
_SCALED = {
    aten.sub.Tensor: aten.sub_.Tensor, aten.mul.Tensor: aten.mul_.Tensor,
    aten.div.Scalar: aten.div_.Scalar, aten.div.Tensor: aten.div_.Tensor,
}
IN_PLACE.update(_SCALED)
_CALL = torch._ops.OpOverload.__call__.__code__
_ENGINE: Any = getattr(graph._engine_run_backward, "__code__", None)
Counts = tuple[int, int, int]


class InPlaceRules:
    """Recognises functional operators that are in place in a real step."""

    def __init__(self) -> None:
        self._alone: Counts | None = None  # a tensor that only the engine holds
        self._seen: list[Counts] | None = None
        self._product: tuple[int, int, int] | None = None  # frame and instruction of the last product; its storage

    def product(self, caller: FrameType, out: torch.Tensor) -> None:
        """A matrix product was made by the instruction that `caller` is at."""
        self._product = id(caller), caller.f_lasti, out.untyped_storage()._cdata

    def in_place(self, func: Any, args: Any, caller: FrameType, just_made: int) -> Any:
        """The in-place operator that really runs instead of `func`, or None. `caller` is the Python frame that led to
        the call; `just_made` the storage that the last operator made."""
        if caller.f_code is _ENGINE:
            if func in _SCALED and torch._C._current_autograd_node().name() != _LOSS:
                return None
            if func is not ADD:
                return IN_PLACE[func] if args[0].untyped_storage()._cdata == just_made else None
            return IN_PLACE[ADD] if self._accumulates(args) else None
        if func is ADD and self._product is not None and self._completes_product(func, args, caller):
            return IN_PLACE[ADD]
        return None

    def calibrate(self, mode: Any) -> None:
        """Measure the counts in a small backward pass under `mode`."""
        if self._alone is not None:
            return
        self._seen = []
        try:
            with mode, torch.enable_grad():
                leaf = torch.zeros(4, 4, requires_grad=True)
                x = leaf * 1
                (x.sin() + x.cos()).sum().backward()
            self._alone = self._seen[0]
        finally:
            self._seen = None

    def _accumulates(self, args: Any) -> bool:
        if len(args) != 2 or not isinstance(args[1], torch.Tensor) or torch.is_grad_enabled():
            return False
        counts = _counts(args)
        if self._seen is not None:
            self._seen.append(counts)
            return False
        return counts == self._alone and args[0].shape == args[1].shape and _dense(args[0])

    def _completes_product(self, func: Any, args: Any, caller: FrameType) -> bool:
        """One Python instruction made product and sum: a function of torch's own, not `a @ b + c` in Python, and not the sum
        called by itself, whose frame may lie where that of a product lay. Under a dispatch mode of the job's own
        (recomputation by tensor is one) torch does not work in place either."""
        if caller.f_code is _CALL and caller.f_locals["self"] is func:
            return False
        if caller.f_code is _CALL and caller.f_back is not None and caller.f_back.f_code.co_name == "__torch_dispatch__":
            return False
        storage = args[0].untyped_storage()._cdata
        if self._product != (id(caller), caller.f_lasti, storage) or not isinstance(args[1], torch.Tensor):
            return False
        self._product = None
        return bool(args[0].dtype == args[1].dtype and args[0].dim() >= args[1].dim())


def _counts(args: Any) -> Counts:
    storage = args[0].untyped_storage()
    return args[0]._use_count(), sys.getrefcount(args[0]), torch._C._storage_Use_Count(storage._cdata)


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill memory without gaps or overlaps, in some order of the dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, side in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if side != 1:
            if stride != expected:
                return False
            expected *= side
    return True
