"""Where autograd adds or scatters in place on real tensors, but not while a dispatch mode is active.

A gradient that meets another in the engine is added into it, if it is dense and nobody else holds it; and some backward
formulas scatter into the zeros that they just made. Who holds a tensor is read off reference counts, which differ from
one version of torch to the next: what they are for a tensor that only the engine holds is measured at first use.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch.autograd import graph

aten: Any = torch.ops.aten
IN_PLACE: dict[Any, Any] = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter.src: aten.scatter_.src,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.put.default: aten.put_.default,
}
_ENGINE: Any = getattr(graph._engine_run_backward, "__code__", None)
Counts = tuple[int, int, int]


class EngineAccumulation:
    """Recognises the engine's own additions and scatters, and whether the real ones are in place."""

    def __init__(self) -> None:
        self._alone: Counts | None = None  # a tensor that only the engine holds
        self._alone_view: Counts | None = None
        self._seen: list[Counts] | None = None

    def in_place(self, func: Any, args: Any, caller: FrameType, just_made: int) -> Any:
        """The in-place operator that really runs, or None. `caller` is the Python frame that called the operator (the
        engine's own, unless a hook or a custom function did); `just_made` the storage that the last operator made."""
        if caller.f_code is not _ENGINE:
            return None
        if func is not aten.add.Tensor:
            target = args[0]
            return IN_PLACE[func] if target.untyped_storage()._cdata == just_made else None
        if len(args) != 2 or not isinstance(args[1], torch.Tensor) or torch.is_grad_enabled():
            return None
        counts = _counts(args)
        if self._seen is not None:
            self._seen.append(counts)
            return None
        alone = self._alone_view if getattr(args[0], "_memfit_view", False) else self._alone
        if counts != alone or args[0].shape != args[1].shape or not _dense(args[0]):
            return None
        return aten.add_.Tensor

    def calibrate(self, mode: Any) -> None:
        """Measure the counts in two small backward passes under `mode`."""
        if self._alone is not None:
            return
        self._seen = []
        try:
            with mode, torch.enable_grad():
                _meet(lambda x: x.cos())
                _meet(lambda x: x.view(16))
            self._alone, self._alone_view = self._seen[0], self._seen[1]
        finally:
            self._seen = None


def _meet(other: Any) -> None:
    """Two gradients meet at one tensor: `other`'s first, as it ran last."""
    leaf = torch.zeros(4, 4, requires_grad=True)
    x = leaf * 1
    one = x.sin().sum()
    (one + (other(x) * torch.zeros(other(leaf.detach()).shape)).sum()).backward()


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
