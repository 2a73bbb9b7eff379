"""A model with parameters in bfloat16 runs under autocast, wherever it is called from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from memfit.hooks import call_forward


def under_autocast(module: nn.Module, previous: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    """The forward of the whole model. Without a graph (evaluation) results are float32, as they would be without this."""
    device = next(module.parameters()).device.type
    with torch.autocast(device, dtype=torch.bfloat16):
        out = call_forward(module, previous, *args, **kwargs)
    return out if torch.is_grad_enabled() else pytree.tree_map_only(torch.Tensor, _float, out)


def _float(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype is torch.bfloat16 else tensor
