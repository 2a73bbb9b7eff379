"""Before a run in lower precision: where numbers leave its range, and which parameters are in half precision by accident.

One forward and backward of the first part, under the plan, that leaves no trace: gradients flow to the first modules'
outputs only, so no parameter gets one and no hook of an optimizer runs; buffers and random generators are put back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from memfit.core.strategy import Choice
from memfit.jobs import Job, batches
from memfit.jobs.replay import ForwardState
from memfit.jobs.step import forward
from memfit.jobs.weights import IGNORED, labels, weigh

_LOWERING = ("autocast", "low-precision-parameters")
_UNWATCHED = ("compile",)  # hooks would make it compile anew
_HALF = (torch.float16, torch.bfloat16)
_NAMED = 3
PRECISION = "precision: "  # begins every note


def precision_notes(job: Job, choices: Sequence[Choice]) -> list[str]:
    """One line for each finding, of a job whose plan is applied; none where the plan keeps the job's precision."""
    names = {choice.name for choice in choices}
    if not names & set(_LOWERING):
        return []
    on_purpose = job.rules.narrow is not None
    found = [None if on_purpose else half_by_accident(job.model), None if names & set(_UNWATCHED) else first_not_finite(job)]
    return [f"{PRECISION}{line}" for line in found if line]


def half_by_accident(model: nn.Module) -> str | None:
    """One line on trainable parameters in half precision among a majority in float32."""
    held = [(name, p) for name, p in model.named_parameters() if p.requires_grad and p.is_floating_point()]
    half = [(name, p) for name, p in held if p.dtype in _HALF]
    if not half or 2 * sum(p.numel() for _, p in half) >= sum(p.numel() for _, p in held):
        return None
    shown = ", ".join(f"{name} ({_dtype(p)})" for name, p in half[:_NAMED])
    more = f" and {len(half) - _NAMED} more" if len(half) > _NAMED else ""
    return f"{len(half)} of {len(held)} parameters are in half precision, and updated in it: {shown}{more}"


def first_not_finite(job: Job) -> str | None:
    """One line naming the first module, in the order of computation, whose output is not finite; else, in that of
    backward, the first whose output's gradient is not. Raises what the job's own code raises in forward."""
    part = _counted_part(job)
    if part is None:
        return None
    state = ForwardState(job.model)
    seen = _Seen()
    try:
        with _watched(job.model, seen):
            loss = forward(job, part)
        if not seen.line and not bool(torch.isfinite(loss.detach()).all()):
            seen.line = f"the loss is {float(loss.detach())}, though the output of every module is finite"
        if not seen.line and seen.sources:
            with suppress(RuntimeError):  # reentrant checkpoints refuse it; whatever else fails will fail in the step
                torch.autograd.grad(loss, seen.sources, allow_unused=True)
    finally:
        seen.sources.clear()
        state.put_back()
    return seen.line or None


def _counted_part(job: Job) -> Any:
    """The first part of the job's batch that counts for something; None if none does."""
    count = job.rules.micro_batches if batches.why_unsplittable(job.batch) is None else 1
    known = labels(job.batch)
    if count == 1:
        return None if known is not None and bool((known == IGNORED).all()) else job.batch
    return next((part for part in batches.split(job.batch, count) if weigh(job, part) > 0), None)


@dataclass
class _Seen:
    """`sources` are outputs that begin the graph: their gradients lie at the end of backward."""

    line: str = ""
    sources: list[torch.Tensor] = field(default_factory=list)

    def output(self, path: str, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        begins = not any(t.requires_grad for t in _plain((args, kwargs)))
        for tensor in _plain(out):
            if not self.line and not _finite(tensor.detach()):
                self.line = f"{path} is the first module whose output is not finite ({_dtype(tensor)})"
            if tensor.requires_grad:
                tensor.register_hook(partial(self.gradient, path))
                self.sources += [tensor] if begins else []

    def gradient(self, path: str, gradient: torch.Tensor) -> None:
        if not self.line and not _finite(gradient):
            self.line = f"the gradient of the output of {path} is the first that is not finite ({_dtype(gradient)})"


@contextmanager
def _watched(model: nn.Module, seen: _Seen) -> Iterator[None]:
    handles = [module.register_forward_hook(partial(seen.output, path or type(model).__name__), with_kwargs=True)
               for path, module in model.named_modules() if not isinstance(module, torch.jit.ScriptModule)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _plain(tree: Any) -> Iterator[torch.Tensor]:
    """Floating-point tensors of a result; subclasses (logits that are not made yet) are left alone."""
    return (t for t in batches.tensors(tree) if type(t) is torch.Tensor and t.is_floating_point() and t.numel())


def _finite(tensor: torch.Tensor) -> bool:
    """By its extremes: no temporary as large as the tensor."""
    return all(bool(torch.isfinite(one)) for one in torch.aminmax(tensor))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
