"""`compile{modules}`: forward and backward of the named modules as code that Inductor writes, with operators fused."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.core.trace import Trace
from memfit.hooks import call_forward, override_forward
from memfit.jobs import Job, batches
from memfit.trace.compiled import CompiledOnFakes
from memfit.trace.recorder import RecordingMode

_COMPILERS = ("c++", "g++", "clang++")
_APPLIED = count()


class Compile:
    """`modules` are paths of blocks, each compiled by itself. Blocks that are alike share their code, so that compiling takes
    as long as for one of them."""

    name = "compile"
    by_hand = "not chosen by the search: write it into a plan file (docs/strategies/compile.md)"
    settings: tuple[str, ...] = ("modules",)
    takes: frozenset[str] = frozenset()
    after: tuple[str, ...] = ()
    conflicts: Mapping[str, str] = {"recompute": "it looks at each operator of forward, and compiled code has none"}

    def excluded(self, job: Job, target: Device) -> str | None:
        if target.kind not in ("cpu", "any"):
            return f"not chosen for {target.kind} devices"
        if not any(shutil.which(name) for name in _COMPILERS):
            return "torch.compile needs a C++ compiler, and there is none here: install g++"
        return None if blocks(job.model) else "the model has no blocks that are alike"

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        """Reduced where BatchNorm trains inside: its backward amplifies other rounding beyond what counts as the same."""
        known = dict(job.model.named_modules())
        inside = [inner for path in settings["modules"] if path in known for inner in known[path].modules()]
        if any(isinstance(one, _BatchNorm) and one.training for one in inside):
            return Fidelity.REDUCED
        draws = job.draws_random or any(isinstance(one, nn.modules.dropout._DropoutNd) and one.p > 0 for one in inside)
        return Fidelity.RESAMPLED if draws else Fidelity.REORDERED  # compiled code draws its own random numbers

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        """None: what is compiled for a batch of another size is another code, whose peak is not the predicted one (5 % above it
        on `gpt-mini`); and planning would take the seconds that compiling does."""
        return []

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        known = dict(job.model.named_modules())
        missing = [path for path in settings["modules"] if path not in known]
        if missing:
            raise UsageError(f"compile: the model has no module {missing[0]!r}", "name paths of model.named_modules()")
        applied = next(_APPLIED)
        for path in settings["modules"]:
            override_forward(known[path], compiled, undo, applied=applied)

    def absent(self, settings: Settings, trace: Trace) -> str | None:
        called = {call.path for call in trace.calls}
        missing = [path for path in settings["modules"] if path not in called]
        return f"no step calls {missing[0]!r}" if missing else None

    def code(self, settings: Settings) -> CodePart:
        return CodePart(prelude="from functools import partial", setup=_SETUP.format(modules=list(settings["modules"])))

    def warm_up(self) -> None:
        """Load the compiler, and let it look at what the processor can do."""
        _quiet()
        tiny = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
        torch.compile(tiny)(torch.randn(4, 8)).sum().backward()


def blocks(model: nn.Module) -> list[str]:
    """Paths of the outermost modules in lists and sequences that have others beside them with the same class and shapes."""
    found: list[str] = []
    for path, module in model.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and not any(path.startswith(f"{one}.") for one in found):
            children = [(name, child, _kind(child)) for name, child in module.named_children()]
            alike = Counter(kind for _, child, kind in children if any(True for _ in child.children()))
            found += [f"{path}.{name}" if path else name for name, _, kind in children if alike[kind] > 1]
    return found


def _kind(module: nn.Module) -> tuple[Any, ...]:
    return (type(module), tuple(tuple(one.shape) for one in module.parameters()))


def compiled(module: nn.Module, previous: Callable[..., Any] | None, *args: Any, applied: int, **kwargs: Any) -> Any:
    """The module's forward, compiled; on fake tensors by the code that the compiler writes. What was compiled is kept by
    `applied`, the number of the call that applied the strategy."""
    function, lead = _to_compile(type(module).forward, previous)
    modes = (getattr(one, "fake_mode", None) for one in batches.tensors((args, kwargs, list(module.parameters()))))
    mode = next((one for one in modes if isinstance(one, RecordingMode)), None)
    if mode is not None:
        return _on_fakes(function)(mode, module, *lead, *args, **kwargs)
    return _compiled(function, applied)(module, *lead, *args, **kwargs)


def _to_compile(forward: Callable[..., Any], previous: Callable[..., Any] | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The compiler takes no function of torch's own as its start: such a forward is called by one of ours."""
    own = previous is None and forward.__module__.partition(".")[0] != "torch"
    return (forward, ()) if own else (call_forward, (previous,))


@lru_cache(maxsize=64)
def _compiled(function: Callable[..., Any], applied: int) -> Callable[..., Any]:
    _quiet()
    return torch.compile(_fresh(function))


@lru_cache(maxsize=64)
def _on_fakes(function: Callable[..., Any]) -> CompiledOnFakes:
    _quiet()
    return CompiledOnFakes(_fresh(function))


def _fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with code of its own: the compiler counts by code, and stops after eight versions of one."""
    if not isinstance(function, FunctionType):
        return function
    made = FunctionType(function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__,
                        function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _quiet() -> None:
    """Without a card the compiler warns, of no use to anybody, where the CUDA toolkit lies."""
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


_SETUP = """
compiled = {{}}  # one for each class: blocks that are alike share their code
for path in {modules!r}:
    block = model.get_submodule(path)
    forward = type(block).forward
    block.forward = partial(compiled.setdefault(forward, torch.compile(forward)), block)
""".strip()

STRATEGY = Compile()
