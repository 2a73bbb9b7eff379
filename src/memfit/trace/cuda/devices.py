"""Fake CPU tensors that stand for tensors on the card: requests for `cuda` are answered with them.

Tensors made by `torch.tensor(...)` without a device are on the host in a real run (step counters of optimizers are): they
count no bytes on the card, nor does what is computed from them alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memfit.jobs.away import HOST, mark, place_of
from memfit.trace import shapes
from memfit.trace.cuda.registering import Overrides, composite

aten: Any = torch.ops.aten
_CPU = torch.device("cpu")
_TO_COPY = aten._to_copy.default
_FROM_PYTHON = {aten.lift_fresh.default, aten.lift_fresh_copy.default}
_FEW = 1024  # elements of what may be on the host


def asks_for_card(kwargs: Any) -> bool:
    device = kwargs.get("device")
    return device is not None and device.type == "cuda"


def at_home(mode: Any, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Keyword arguments with the device that stands for the card, and the result where nothing is to be done."""
    kwargs = {**kwargs, "device": _CPU}
    if func is not _TO_COPY or type(args[0]) is not FakeTensor or on_host(args[0]):
        return kwargs, None
    tensor = args[0]
    same = kwargs.get("dtype") in (None, tensor.dtype) and kwargs.get("memory_format") in (None, torch.preserve_format)
    return kwargs, shapes.alias(mode, tensor) if same else None


def on_host(tensor: Any) -> bool:
    """Whether a fake tensor stands for one in the host's memory."""
    return bool(place_of(tensor.untyped_storage()))


def put_on_host(tensor: Any) -> None:
    mark(tensor.untyped_storage(), HOST)


def note_host(func: Any, args: Any, out: Any) -> None:
    """Mark a result that a real run has on the host."""
    if type(out) is not FakeTensor or out.numel() > _FEW:
        return
    if func in _FROM_PYTHON:
        put_on_host(out)
        return
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if tensors and all(type(tensor) is FakeTensor and on_host(tensor) for tensor in tensors):
        put_on_host(out)


def counters_on_host(optimizer: torch.optim.Optimizer) -> None:
    """Step counters of a live optimizer: on the card only where it is fused or capturable."""
    for group in optimizer.param_groups:
        if group.get("fused") or group.get("capturable"):
            continue
        for parameter in group["params"]:
            step = optimizer.state.get(parameter, {}).get("step")
            if type(step) is FakeTensor and step.dim() == 0:
                put_on_host(step)


def register(overrides: Overrides) -> None:
    """Let `.to("cuda")` and `.cuda()` stay where they are: a build without CUDA refuses the device's name before a trace sees
    the call."""
    for overload in (aten.to.device, aten.to.dtype_layout):
        overrides.add(f"to.{overload._overloadname}", partial(_moved, overload))


def _moved(overload: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    here = type(tensor) is FakeTensor or not torch.cuda.is_available()
    if here and args and isinstance(args[0], torch.device) and args[0].type == "cuda":
        args = (_CPU, *args[1:])
    if here and asks_for_card(kwargs):
        kwargs = {**kwargs, "device": _CPU}
    return composite(overload, tensor, *args, **kwargs)


@contextmanager
def no_driver_needed() -> Iterator[None]:
    """Inside, calls that wait for the card or empty its cache do nothing instead of asking for a driver."""
    with ExitStack() as stack:
        for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
            stack.enter_context(mock.patch.object(torch.cuda, name, _nothing))
        yield


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What waits for the card has nothing to wait for."""
