"""Optimizers and gradient clipping choose multi-tensor ("foreach") kernels on a card by default; for fakes torch does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch.optim as optim
import torch.optim.optimizer as optimizer_module
import torch.utils._foreach_utils as foreach_module
from torch._subclasses.fake_tensor import FakeTensor

_CAPTURABLE = "_get_capturable_supported_devices"


@contextmanager
def cuda_optimizers() -> Iterator[None]:
    """Inside, fake CPU tensors count as tensors on a card where a multi-tensor step is chosen."""
    with ExitStack() as stack:
        for module in (optimizer_module, foreach_module):
            for name in ("_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"):
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, _supported))
        for module in [optimizer_module, *(one for one in vars(optim).values() if hasattr(one, _CAPTURABLE))]:
            if hasattr(module, _CAPTURABLE):
                stack.enter_context(mock.patch.object(module, _CAPTURABLE, _supported))
        for module in (optimizer_module, foreach_module):
            types: list[Any] = module._foreach_supported_types
            types.append(FakeTensor)
            stack.callback(types.remove, FakeTensor)
        yield


def _supported(*args: Any, **kwargs: Any) -> list[str]:
    return ["cuda", "cpu"]
