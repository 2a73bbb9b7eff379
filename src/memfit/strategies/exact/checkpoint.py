"""Activation checkpointing by module: keep a module's inputs, run it again when backward needs its inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.core.trace import Trace
from memfit.hooks import batchnorm, forward, override_forward, recompute, recomputed, source
from memfit.jobs import Job
from memfit.trace.segments import Segment, segments
from memfit.trace.usage import usage


class Checkpoint:
    """`modules` are paths; a module inside another one of them is recomputed within its recomputation."""

    name = "checkpoint"
    settings: tuple[str, ...] = ("modules",)
    takes = frozenset({"module forward"})
    after: tuple[str, ...] = ("chunked-loss", "compile")
    conflicts: Mapping[str, str] = {}

    def excluded(self, job: Job, target: Device) -> str | None:
        return None

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return Fidelity.BITWISE

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        """A few selections to start from: a quarter, half and all of the outermost modules that each hold at most
        half of what is saved. The planner chooses more finely."""
        paths = [segment.path for segment in outermost(candidates(job, trace))]
        parts = sorted({max(1, len(paths) // 4), max(1, len(paths) // 2), len(paths)}) if paths else []
        return [{"modules": paths[:count]} for count in parts]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        modules = _modules(job.model, settings.get("modules"))
        _without_cache(job.model, undo)
        for path, module in modules.items():
            override_forward(module, checkpointed, undo, memfit_path=path)

    def code(self, settings: Settings) -> CodePart:
        return CodePart(prelude=source(batchnorm, forward.call_forward, recompute),
                        setup=_SETUP.format(modules=list(settings["modules"])))


def checkpointed(
    module: nn.Module, previous: Callable[..., Any] | None, *args: Any, memfit_path: str = "", **kwargs: Any
) -> Any:
    """`recomputed`, refusing what recomputation would get wrong: a cache it fills twice, a buffer it moves twice."""
    if not torch.is_grad_enabled():
        return forward.call_forward(module, previous, *args, **kwargs)
    for value in (*args, *kwargs.values()):
        if _is_cache(value):
            raise UsageError(f"checkpoint of {memfit_path}: it fills a key/value cache ({type(value).__name__}), "
                             "which recomputation would fill twice", "pass use_cache=False to the model")
    before = _versions(module)
    result = recomputed(module, previous, *args, **kwargs)
    for name, version in _versions(module).items():
        if before.get(name, version) != version:
            raise UsageError(f"checkpoint of {memfit_path}: its forward changes the buffer {name}, "
                             "which recomputation would change twice", f"leave {memfit_path} out of the modules")
    return result


def candidates(job: Job, trace: Trace) -> list[Segment]:
    """Modules worth checkpointing, read off the plain trace: they free something, and recomputing them is right."""
    barred = unfit(job, trace)
    return [segment for segment in segments(trace, usage(trace)) if segment.path not in barred]


def unfit(job: Job, trace: Trace) -> dict[str, str]:
    """Paths of modules that must not or need not be checkpointed, with the reason in a few words."""
    found: dict[str, str] = {}
    called = {segment.path: segment for segment in segments(trace, usage(trace))}
    mutated = _moving(job.model, trace.mutated_buffers)
    for path, _ in job.model.named_modules():
        moved = next((name for name in mutated if name.startswith(path + ".")), None)
        if path not in called:
            found[path] = "takes no part in backward" if path else "is the whole model"
        elif moved is not None:
            found[path] = f"changes its buffer {moved}"
        elif called[path].frees_bytes <= 0:
            found[path] = "saves nothing"
    return found


def outermost(segments: Sequence[Segment], share: float = 0.5) -> list[Segment]:
    """Segments that hold at most `share` of all that is saved, none inside another."""
    most = max((segment.saved_bytes for segment in segments), default=0) * share
    small = [segment for segment in segments if segment.saved_bytes <= most] or list(segments)
    kept: list[Segment] = []
    for segment in sorted(small, key=lambda one: one.path.count(".")):
        if not any(segment.path.startswith(outer.path + ".") for outer in kept):
            kept.append(segment)
    order = {segment.path: place for place, segment in enumerate(segments)}
    return sorted(kept, key=lambda segment: order[segment.path])


def _moving(model: nn.Module, mutated: Sequence[str]) -> list[str]:
    """Mutated buffers that recomputation cannot leave alone: all but those of normalisation layers."""
    return [name for name in mutated if not isinstance(model.get_submodule(name.rpartition(".")[0]), _NormBase)]


def _versions(module: nn.Module) -> dict[str, int]:
    """How often each buffer was written to; normalisation layers are looked after by `recomputed`."""
    return {f"{path}.{name}" if path else name: buffer._version
            for path, inner in module.named_modules() if inner._buffers and not isinstance(inner, _NormBase)
            for name, buffer in inner._buffers.items() if buffer is not None}


def _is_cache(value: object) -> bool:
    return hasattr(value, "update") and hasattr(value, "get_seq_length")


def _modules(model: nn.Module, paths: object) -> dict[str, nn.Module]:
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, str) for path in paths):
        raise UsageError(f"checkpoint: modules is {paths!r}", "give a list of module paths")
    known = dict(model.named_modules())
    for path in paths:
        if path not in known or not path:
            raise UsageError(f"checkpoint: the model has no module {path!r}",
                             f"its modules are {', '.join(list(known)[1:9])}, ...")
    return {path: known[path] for path in paths}


def _without_cache(model: nn.Module, undo: Undo) -> None:
    """Hugging Face models fill a key/value cache unless told not to; in training nobody reads it."""
    for config in _caching(model):
        undo.push(partial(setattr, config, "use_cache", True))
        config.use_cache = False


def _caching(model: nn.Module) -> list[Any]:
    configs = {id(c): c for m in model.modules() if getattr(c := m.__dict__.get("config"), "use_cache", None) is True}
    return list(configs.values())


_SETUP = """
for module in model.modules():  # a key/value cache would be filled twice
    if getattr(getattr(module, "config", None), "use_cache", None) is True:
        module.config.use_cache = False
for path in {modules}:
    module = model.get_submodule(path)
    module.forward = partial(recomputed, module, module.__dict__.get("forward"))
""".strip()

STRATEGY = Checkpoint()
