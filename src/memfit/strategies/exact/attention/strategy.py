"""`attention{modules}`: attention that the named modules write out runs as `scaled_dot_product_attention`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Settings, Undo
from memfit.core.trace import Trace
from memfit.hooks import override_forward
from memfit.jobs import Job
from memfit.jobs.dropout import has_dropout
from memfit.strategies.exact.attention.watching import with_attention
from memfit.strategies.exact.attention.written import written_attention

_FUSED = ("sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


class Attention:
    """`modules` are paths: those whose own forward has the products and the softmax."""

    name = "attention"
    settings: tuple[str, ...] = ("modules",)
    takes: frozenset[str] = frozenset()
    after: tuple[str, ...] = ()
    conflicts: Mapping[str, str] = {"compile": "it traces a forward in which products wait to see what becomes of them"}

    def excluded(self, job: Job, target: Device) -> str | None:
        kind = getattr(getattr(job.model, "config", None), "_attn_implementation", None)
        return f"the model's attention is fused already (attn_implementation is {kind!r})" if kind in _FUSED else None

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        known = dict(job.model.named_modules())
        inside = [known[path] for path in settings["modules"] if path in known]
        drops = any(has_dropout(module) for module in inside) or (job.draws_random and not has_dropout(job.model))
        return Fidelity.RESAMPLED if drops else Fidelity.REORDERED  # a fused kernel draws its own random numbers

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        """All modules that write attention out."""
        found = [path for path in written_attention(trace) if path in dict(job.model.named_modules())]
        return [{"modules": found}] if found else []

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        for module in _modules(job.model, settings.get("modules")):
            override_forward(module, with_attention, undo)

    def absent(self, settings: Settings, trace: Trace) -> str | None:
        found = written_attention(trace)
        missing = [path for path in settings["modules"] if path not in found]
        return f"no attention is written out in {missing[0]!r}, or something else reads its weights" if missing else None

    def code(self, settings: Settings) -> None:
        return None


def _modules(model: nn.Module, paths: Any) -> list[nn.Module]:
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, str) for path in paths):
        raise UsageError(f"attention: modules is {paths!r}", "give a list of module paths")
    known = dict(model.named_modules())
    for path in paths:
        if path not in known:
            raise UsageError(f"attention: the model has no module {path!r}", "name paths of model.named_modules()")
    return [known[path] for path in paths]


STRATEGY = Attention()
