"""Making and converting modules while their tensors are fake, and leaving the user's process as it was."""

from __future__ import annotations

import functools
import gc
import logging
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor


@contextmanager
def converting() -> Iterator[None]:
    """Inside, `module.half()` and its like work on fake parameters: torch would swap them, which fails while anything
    refers to them weakly."""
    with mock.patch.object(nn.Module, "_apply", _apply):
        yield


def _apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
    if recurse:
        for module in self.children():
            module._apply(fn)
    for name, parameter in self._parameters.items():
        if parameter is None:
            continue
        with torch.no_grad():
            changed = fn(parameter)
            if isinstance(parameter, FakeTensor) != isinstance(changed, FakeTensor):
                self._parameters[name] = nn.Parameter(changed, parameter.requires_grad)
            else:
                parameter.data = changed
            if parameter.grad is not None:
                parameter.grad.data = fn(parameter.grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


@contextmanager
def quiet_failures() -> Iterator[None]:
    """Inside, torch does not log a traceback for an operator that fails on fake tensors: we tell what it raises."""
    with mock.patch.object(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True):
        yield


@contextmanager
def unrecognised() -> Iterator[None]:
    """Inside, transformers does not see that tensors are fake: it would leave out its checks of values, and take other
    branches than a real step (a mask that it could drop is kept)."""
    module = sys.modules.get("transformers.utils.import_utils")
    if module is None or not hasattr(module, "is_fake_tensor"):
        yield
        return
    with mock.patch.object(module, "is_fake_tensor", lambda _: False):
        yield


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Building a model or a checkpoint's recomputation sets generators; the user's are as before afterwards."""
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.callback(random.setstate, random.getstate())
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            stack.callback(numpy.random.set_state, numpy.random.get_state())
        yield


@contextmanager
def no_collection() -> Iterator[None]:
    """A garbage collection in the middle would kill storages at a random place."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def clear_caches_holding(mode: Any) -> None:
    """Empty each `functools` cache of the process that holds a fake tensor of `mode`: a real step would get it."""
    for cache in [thing for thing in gc.get_objects() if type(thing) is functools._lru_cache_wrapper]:
        if any(_holds(kept, mode, 3) for kept in gc.get_referents(cache)):
            cache.cache_clear()


def _holds(thing: Any, mode: Any, depth: int) -> bool:
    if isinstance(thing, FakeTensor):
        return thing.fake_mode is mode
    if depth == 0 or not isinstance(thing, (dict, list, tuple, set)):
        return False
    inner = thing.values() if isinstance(thing, dict) else thing
    return any(_holds(kept, mode, depth - 1) for kept in inner)
