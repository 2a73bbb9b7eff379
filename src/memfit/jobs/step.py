"""The training step: the plain one, and the window of micro-batches. Trace, train and prove all call `run_step`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from memfit.core.errors import UsageError
from memfit.jobs import batches
from memfit.jobs.weights import weigh

if TYPE_CHECKING:
    from memfit.jobs.job import Job


@dataclass(frozen=True)
class StepResult:
    """`loss` is the mean over the whole window (a detached scalar tensor); `grad_norm` before clipping, or None.
    `skipped`: a gradient was not finite under loss scaling, so that nothing was updated."""

    loss: torch.Tensor
    grad_norm: torch.Tensor | None
    micro_batches: int
    left_out: int = 0
    skipped: bool = False


def ignore_phase(name: str, micro_batch: int) -> None:
    """The default `on_phase`: nobody listens."""


def run_step(
    job: Job,
    batch: Any,
    *,
    on_phase: Callable[[str, int], None] = ignore_phase,
    on_loss: Callable[[torch.Tensor], None] | None = None,
    on_gradients: Callable[[], None] | None = None,
    parts: Sequence[Any] | None = None,
) -> StepResult:
    """Forward, backward, clip, `optimizer.step()`, `scheduler.step()`, `zero_grad(set_to_none=True)`: once a window.

    The batch is split by `job.rules.micro_batches` (or given as `parts`); each part's loss counts by its weight, so
    that gradients are those of the whole batch. A part whose weight is zero is left out. `on_phase(name, i)` is told
    `forward`, `backward`, `optimizer` as they begin; `on_loss(loss)` sees each part's loss, detached, before its
    backward (twice where a window takes two passes); `on_gradients()` sees the gradients that are there before the
    optimizer, unscaled and unclipped. What either raises ends the step there.
    Raises UsageError for a loss that is no scalar or has no graph.
    """
    if parts is None:
        parts = batches.split(batch, job.rules.micro_batches)
    shares, left_out = _shares(job, parts)
    optimizer, scheduler = job.optimizer, job.scheduler  # made before the first step: a scheduler sets its rate
    if job.zero_grad == "before_forward":
        optimizer.zero_grad(set_to_none=True)
    run = _Parts(job, parts, on_phase, on_loss)
    release = job.rules.release
    if release is not None:
        release.begin(job, len(shares), lambda: run(shares[:1]))
    total = run(shares, release.last_backward if release is not None else nullcontext)
    on_phase("optimizer", len(parts) - 1)
    norm, skipped = _finish(job, optimizer, scheduler, on_gradients)
    if release is not None:
        release.stepped = 0
    return StepResult(total, norm, len(shares), left_out, skipped)


@dataclass(frozen=True)
class _Parts:
    """Forward and backward of a window's parts; the sum of their losses."""

    job: Job
    parts: Sequence[Any]
    on_phase: Callable[[str, int], None]
    on_loss: Callable[[torch.Tensor], None] | None

    def __call__(
        self, shares: Sequence[tuple[int, float]], last_backward: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> torch.Tensor:
        total: torch.Tensor | None = None
        for index, share in shares:
            self.on_phase("forward", index)
            loss = self._loss(index, share)
            if self.job.zero_grad == "before_backward" and total is None:
                self.job.optimizer.zero_grad(set_to_none=True)
            self.on_phase("backward", index)
            with last_backward() if index == shares[-1][0] else nullcontext():
                _backward(self.job, loss)
            total = loss.detach() if total is None else total + loss.detach()
            del loss
        assert total is not None
        return total

    def _loss(self, index: int, share: float) -> torch.Tensor:
        loss = forward(self.job, self.parts[index])
        if self.on_loss is not None:
            self.on_loss(loss.detach())
        return loss if share == 1.0 else loss * share


def _backward(job: Job, loss: torch.Tensor) -> None:
    scaling = job.rules.scaling
    (loss if scaling is None else scaling.scale(loss)).backward()


def forward(job: Job, batch: Any) -> torch.Tensor:
    """The loss of one part, inside the contexts that strategies asked for; checked to be a scalar with a graph."""
    with ExitStack() as stack:
        for context in job.rules.contexts:
            stack.enter_context(context())
        loss = job.loss(job.model, batch)
    if not isinstance(loss, torch.Tensor):
        raise UsageError(f"loss(model, batch) gave {type(loss).__name__}, not a tensor",
                         "return the scalar loss tensor")
    if loss.dim() != 0 and loss.numel() != 1:
        raise UsageError(f"loss(model, batch) gave a tensor of shape {list(loss.shape)}, not a scalar",
                         "return its mean")
    if not loss.requires_grad:
        raise UsageError("the loss has no graph: nothing that trains leads to it",
                         "compute it from the model's outputs, without .item(), .detach() or torch.no_grad()")
    return loss if loss.dim() == 0 else loss.reshape(())


def _shares(job: Job, parts: Sequence[Any]) -> tuple[list[tuple[int, float]], int]:
    """`(part, its share of the window)` for the parts that count, and how many were left out."""
    if len(parts) == 1:
        return [(0, 1.0)], 0
    weights = [weigh(job, part) for part in parts]
    total = sum(weights)
    if total <= 0:
        return [(0, 1.0)], len(parts) - 1
    shares = [(index, weight / total) for index, weight in enumerate(weights) if weight > 0]
    return shares, len(parts) - len(shares)


def _finish(
    job: Job, optimizer: torch.optim.Optimizer, scheduler: Any, on_gradients: Callable[[], None] | None
) -> tuple[torch.Tensor | None, bool]:
    """Unscale, clip, step, update, zero: the gradients' norm before clipping, and whether the step was skipped."""
    scaling, release = job.rules.scaling, job.rules.release
    if scaling is not None:
        scaling.unscale(optimizer)
    if on_gradients is not None:
        on_gradients()
    norm = release.finish(job) if release is not None else _clip(job, optimizer)
    if scaling is None:
        with job.rules.stepped():
            optimizer.step()
        stepped = True
    else:
        stepped = scaling.step(optimizer)
    if scheduler is not None and stepped:
        scheduler.step()
    if job.zero_grad == "after_step":
        optimizer.zero_grad(set_to_none=True)
    return norm, not stepped


def _clip(job: Job, optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
    if job.clip_norm is None:
        return None
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return torch.nn.utils.clip_grad_norm_(parameters, job.clip_norm)
