"""Which module an operator runs in, and the calls of modules with their inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor

from memfit.core.trace import ModuleCall
from memfit.jobs import batches
from memfit.trace.recorder import RecordingMode


class ModuleStack:
    """Hooks on a fake model that keep the path of the running module and record its forward calls."""

    def __init__(self, model: nn.Module, mode: RecordingMode) -> None:
        self._mode = mode
        self._stack: list[tuple[str, int, tuple[int, ...]]] = []
        self.calls: list[ModuleCall] = []
        self._handles: list[Any] = []
        for path, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):  # takes no such hooks
                self._handles.append(module.register_forward_pre_hook(self._enter(path), with_kwargs=True))
                self._handles.append(
                    module.register_forward_hook(self._leave(path), with_kwargs=True, always_call=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            recording = self._mode.recording
            position = len(recording.events) if recording else 0
            self._stack.append((path, position, self._storages((args, kwargs))))
            self._mode.module = path

        return hook

    def _leave(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            while self._stack:  # an exception (early stop of a recomputation) may have skipped inner modules
                entered, start, inputs = self._stack.pop()
                if entered == path:
                    break
            else:
                return
            self._mode.module = self._stack[-1][0] if self._stack else ""
            recording = self._mode.recording
            if recording is not None and recording.phase == "forward":
                self.calls.append(ModuleCall(path, start, len(recording.events), inputs, self._storages(output),
                                             len(self._stack)))

        return hook

    def _storages(self, tree: Any) -> tuple[int, ...]:
        recording = self._mode.recording
        if recording is None or recording.phase != "forward":
            return ()
        return tuple({recording.index_of(tensor): None for tensor in batches.tensors(tree)
                      if tensor.layout == torch.strided and not is_functorch_wrapped_tensor(tensor)})


@contextmanager
def module_stack(model: nn.Module, mode: RecordingMode) -> Iterator[ModuleStack]:
    """Watch the model's module calls while inside."""
    stack = ModuleStack(model, mode)
    mode.owners = {id(parameter): path for path, module in model.named_modules()
                   for parameter in module._parameters.values() if parameter is not None}
    try:
        yield stack
    finally:
        mode.module = ""
        mode.owners = {}
        stack.remove()
