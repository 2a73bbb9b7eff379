"""Compiled code on fake tensors: TorchDynamo, AOTAutograd and Inductor do what they do, and the code that Inductor wrote is
run with kernels that do nothing, so that every buffer of it is born and dies where it really does.

See https://docs.pytorch.org/docs/stable/torch.compiler_faq.html for the parts; the code is Inductor's wrapper, Python that
allocates buffers, calls kernels and deletes buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from memfit.core.errors import Untraceable
from memfit.trace.recorder import RecordingMode

_FUNCTIONS = ("erf", "exp", "tanh", "log", "sigmoid", "sqrt", "pow")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class CompiledOnFakes:
    """A function as `torch.compile` would run it on the tensors of a recording mode."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._compiled = torch.compile(function, backend=self._backend, dynamic=False, fullgraph=True)

    def __call__(self, mode: RecordingMode, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Raises Untraceable where the function is not one graph."""
        from torch._dynamo.exc import Unsupported

        try:
            with hooks_hidden(module), mode.silent(), _disable_current_modes(), _settings():
                return self._compiled(module, *args, **kwargs)
        except Unsupported as error:
            text = str(error).strip().splitlines()
            raise Untraceable(f"torch.compile cannot take {type(module).__name__} as one graph: {text[0] if text else ''}",
                              "leave compile out of the plan, or name other modules") from error

    def _backend(self, graph: Any, inputs: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph, inputs, inner_compile=_without_kernels)


def _without_kernels(*args: Any, **kwargs: Any) -> Any:
    from torch._inductor import codecache
    from torch._inductor.compile_fx import compile_fx_inner

    with _settings(), mock.patch.object(codecache.PyCodeCache, "load_by_key_path", _load):
        return compile_fx_inner(*args, **kwargs)


@contextmanager
def _settings() -> Iterator[None]:
    """One graph, many shapes, and no caches on disk: they would keep code without kernels."""
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    with (dynamo.patch(recompile_limit=256), inductor.patch(fx_graph_cache=False),
          functorch.patch(enable_autograd_cache=False)):
        yield


@contextmanager
def hooks_hidden(module: nn.Module) -> Iterator[None]:
    """Inside, the modules below have no forward hooks: those that watch a trace are not there in a real step."""
    with ExitStack() as stack:
        for inner in module.modules():
            if inner is not module:
                for name in _HOOKS:
                    stack.enter_context(mock.patch.object(inner, name, type(getattr(inner, name))()))
        yield


def _load(key: str, path: str, linemap: Any = None, attrs: dict[str, Any] | None = None) -> ModuleType:
    """Inductor's wrapper module, with kernels that do nothing and allocations that a recording mode sees."""
    made = ModuleType(f"memfit_compiled_{key}")
    made.__file__ = path
    names = made.__dict__
    names["_memfit_kernels"] = _Kernels
    source = Path(path).read_text(encoding="utf-8").replace("AsyncCompile()", "_memfit_kernels()")
    exec(compile(source, path, "exec"), names)
    names.update(attrs or {})
    names.update(empty_strided_cpu=_empty, assert_size_stride=_nothing, reinterpret_tensor=_reinterpreted)
    names["call"] = _recorded(names["call"])
    return made


class _Kernels:
    """Stands for Inductor's compiler: every kernel only tells the recording mode that it ran."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _nothing if name == "wait" else _kernel


def _kernel(*definition: Any, **named: Any) -> Callable[..., None]:
    name = _kind_of(" ".join(one for one in definition if isinstance(one, str)))

    def run(*args: Any) -> None:
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        mode = _mode(tensors)
        if mode is not None:
            mode.kernel(name, tensors)

    return run


def _kind_of(source: str) -> str:
    """By what takes a kernel's time beside its memory: random numbers (made one at a time), functions, or nothing."""
    if "rand" in source:
        return "fused_random"
    return "fused_functions" if any(word in source for word in _FUNCTIONS) else "fused"


def _recorded(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(inputs: list[Any]) -> Any:
        mode = _mode(inputs)
        if mode is None:
            return call(inputs)
        with mode.heard(), mode:
            return call(inputs)

    return run


def _mode(inputs: Any) -> RecordingMode | None:
    modes = [getattr(one, "fake_mode", None) for one in inputs if isinstance(one, torch.Tensor)]
    return next((mode for mode in modes if isinstance(mode, RecordingMode)), None)


def _nothing(*args: Any, **named: Any) -> None:
    """In place of what has no effect on memory."""


def _empty(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def _reinterpreted(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)
