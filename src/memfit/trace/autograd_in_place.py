"""Where autograd adds or scatters in place on real tensors, but not under a dispatch mode."""

from __future__ import annotations

from typing import Any

import torch

aten: Any = torch.ops.aten
_SCATTERS = {
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter.src: aten.scatter_.src,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
}


def really_in_place(func: Any, args: Any) -> Any:
    """The result of doing it in place, where real autograd does; None where it does not."""
    if func is aten.add.Tensor and len(args) == 2 and torch._C._current_autograd_node() is None:
        return _accumulate(args)
    return None


def _accumulate(args: Any) -> Any:
    return None
