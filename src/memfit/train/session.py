"""A plan applied to a job: `step(batch)` trains."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from memfit.apply import apply_choices
from memfit.core.errors import RanOutOfMemory, UsageError
from memfit.core.results import Plan
from memfit.core.strategy import Choice, Undo
from memfit.jobs import Job, batches, run_step
from memfit.jobs.identity import model_hash
from memfit.jobs.job import check_optimizer
from memfit.jobs.modes import evaluating
from memfit.jobs.step import StepResult
from memfit.jobs.weight_probe import Weight, probe_weight
from memfit.jobs.weights import IGNORED, labels
from memfit.monitor.step_peaks import StepPeaks
from memfit.train.failures import NotFinite, told_half_done, told_to_user
from memfit.train.precision import PRECISION, precision_notes
from memfit.train.probing import probed_in_child
from memfit.train.step_state import StepState

MICRO_BATCHES = "micro-batches"


@dataclass(frozen=True)
class StepOutput:
    """One training step. `peak_bytes` is the peak of tensor bytes, profiled when `profiled`, else known from a profiled
    step of the same shapes; `step_s` includes the profiler's price then. `left_out` counts micro-batches without a
    label; `skipped` says that nothing was updated: the whole batch had no label (the loss is NaN then), or a gradient was
    not finite under loss scaling.
    """

    loss_tensor: torch.Tensor = field(repr=False)
    peak_bytes: int
    step_s: float
    step: int
    micro_batches: int = 1
    left_out: int = 0
    skipped: bool = False
    profiled: bool = False
    grad_norm_tensor: torch.Tensor | None = field(default=None, repr=False)

    @property
    def loss(self) -> float:
        """The mean loss over the window; read when asked for, as that waits for a card."""
        return float(self.loss_tensor)

    @property
    def grad_norm(self) -> float | None:
        """The global gradient norm before clipping, where the job clips."""
        return None if self.grad_norm_tensor is None else float(self.grad_norm_tensor)


class Session:
    """Applies a plan (or choices) to a job and trains it, a window a `step`; `close` takes everything back.

    Micro-batches are only used with a weight that was seen to make their mean the whole loss; the session checks it
    before its first step. Raises UsageError if the plan belongs to another model, a strategy does not apply, the
    optimizer is not the model's, or no weight passes.

    >>> with Session(job, plan) as session:
    ...     for batch in loader:
    ...         print(session.step(batch).loss)
    """

    def __init__(self, job: Job, plan: Plan | Sequence[Choice] = (), *, profile_peaks: bool = True) -> None:
        if isinstance(plan, Plan):
            from memfit.plan.files import check_belongs  # a worker has choices only, and need not load the search

            check_belongs(plan, model_hash(job.model))
        check_optimizer(job.model, job.optimizer)
        self.job = job
        self.plan = plan if isinstance(plan, Plan) else None
        self.choices = choices_of(plan)
        self.notes: list[str] = []
        self._skipped = False
        self.steps = 0
        self._weight_before = job.weight
        self._check_weight()
        self._undo: Undo | None = None
        try:
            self._undo = apply_choices(job, self.choices)
            with told_to_user("the precision probe"):
                self.notes += precision_notes(job, self.choices)
        except BaseException:
            self.close()
            job.weight = self._weight_before
            raise
        self._state = StepState(job)
        self._peaks = StepPeaks(job) if profile_peaks else None

    @property
    def peak_bytes(self) -> int:
        """Highest peak of tensor bytes of the steps so far; 0 before the first."""
        return self._peaks.highest_bytes if self._peaks is not None else 0

    def step(self, batch: Any = None, *, on_gradients: Callable[[], None] | None = None) -> StepOutput:
        """Train on one batch (the job's own if none is given): split, forward and backward of each part, clip, step.

        `on_gradients()` sees the window's gradients before they are clipped (those that step in backward are gone by
        then; `job.rules.on_parameter_gradient` sees them).

        Raises UsageError for a loss that is no scalar, has no graph, or is not finite, and for exceptions of the job's
        own code; RanOutOfMemory if memory is refused. A step that fails before the optimizer's has not happened:
        gradients, buffers, random generators and loss scaling are as before it. One that fails while the optimizer steps
        in backward has stepped some parameters: its error says how many.
        """
        if self._undo is None:
            raise UsageError("the session is closed", "make a new one: memfit.apply(plan, job)")
        batch = self.job.batch if batch is None else batch
        began = time.perf_counter()
        self._state.keep()
        try:
            with told_to_user(f"step {self.steps + 1}"):
                result, peak_bytes, profiled = self._run(batch, on_gradients)
        except BaseException as error:
            self._take_back(error)
            if not (isinstance(error, NotFinite) and _all_ignored(batch)):
                raise
            result, peak_bytes, profiled = None, self.peak_bytes, False
        else:
            self._state.done()
        self.steps += 1
        return self._output(result, peak_bytes, profiled, time.perf_counter() - began)

    def evaluate(self) -> dict[str, float]:
        """The job's `evaluate(model)`, without a graph and in evaluation mode; {} where the job has none."""
        if self.job.evaluate is None:
            return {}
        with evaluating(self.job.model), told_to_user("evaluate(model)"), torch.no_grad():
            return {name: float(value) for name, value in self.job.evaluate(self.job.model).items()}

    def close(self) -> None:
        """Take back what was applied; the trained weights stay. Closing twice is no error."""
        if self._undo is not None:
            undo, self._undo = self._undo, None
            undo()
            self.job.weight = self._weight_before

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _take_back(self, error: BaseException) -> None:
        """A failed step: its frames go (they hold its activations), then its gradients, buffers and random draws."""
        traceback.clear_frames(error.__traceback__)
        self.job.optimizer.zero_grad(set_to_none=True)
        self._state.put_back()
        release = self.job.rules.release
        if release is not None and release.stepped:
            told_half_done(error, release.stepped)
            release.stepped = 0

    def _run(self, batch: Any, on_gradients: Callable[[], None] | None) -> tuple[StepResult, int, bool]:
        parts = self._parts(batch)

        def window() -> StepResult:
            return run_step(self.job, batch, parts=parts, on_loss=self._check_loss, on_gradients=on_gradients)

        return (window(), 0, False) if self._peaks is None else self._peaks.run(batch, window)

    def _parts(self, batch: Any) -> list[Any]:
        """The window's parts; a batch that cannot be split stays whole, with a note."""
        count = self.job.rules.micro_batches
        reason = batches.why_unsplittable(batch) if count > 1 else None
        if reason is not None:
            self._note(f"{MICRO_BATCHES} left out where a batch cannot be split: {reason}")
            return [batch]
        return batches.split(batch, count)

    def _check_loss(self, loss: torch.Tensor) -> None:
        if not math.isfinite(float(loss)):
            found = "".join(f"; {note}" for note in self.notes if note.startswith(PRECISION))
            advice = "lower the learning rate, clip gradients (clip_norm), or look at this batch's data"
            raise NotFinite(f"the loss is {float(loss)} at step {self.steps + 1}; nothing was updated in that step{found}",
                            f"keep the job's own precision, or take bfloat16; else {advice}" if found else advice)

    def _output(self, result: StepResult | None, peak_bytes: int, profiled: bool, step_s: float) -> StepOutput:
        if result is None:
            if not self._skipped:  # one line, however many there are
                self._skipped = True
                self._note(f"steps are left out where every label of the batch is ignored ({IGNORED}): "
                           f"step {self.steps} was the first")
            return StepOutput(torch.tensor(math.nan), peak_bytes, step_s, self.steps, skipped=True)
        if result.skipped:
            self._note("steps are left out where a gradient is not finite: the scale of the loss is halved then (usual in the "
                       "first steps in float16)")
        if result.left_out:
            self._note("micro-batches without a label are left out of their window: they count for nothing")
        return StepOutput(result.loss, peak_bytes, step_s, self.steps, result.micro_batches, result.left_out,
                          result.skipped, profiled, result.grad_norm)

    def _check_weight(self) -> None:
        if not any(choice.name == MICRO_BATCHES for choice in self.choices):
            return
        reason = batches.why_unsplittable(self.job.batch)
        if reason is not None:
            self._note(f"{MICRO_BATCHES} left out where a batch cannot be split: {reason}; their weight is not checked")
            return
        weight, reason = self._probed()
        if weight is None:
            raise UsageError(f"{MICRO_BATCHES} would change the result: {reason}",
                             "plan without micro-batches, or give Job(weight=...) with what its mean is taken over")
        self.job.weight = weight

    def _probed(self) -> tuple[Weight | None, str]:
        """The weight that passes, or why none does. A few samples at once can be more than a budget for micro-batches
        holds: then a child without the limit looks."""
        try:
            with told_to_user("checking the weight of micro-batches"):
                finding = probe_weight(self.job)
                return finding.weight, finding.reason
        except RanOutOfMemory:
            return probed_in_child(self.job)

    def _note(self, line: str) -> None:
        if line not in self.notes:
            self.notes.append(line)


def choices_of(plan: Plan | Sequence[Choice]) -> tuple[Choice, ...]:
    """The strategies of a plan with their settings, in order."""
    if isinstance(plan, Plan):
        return tuple(Choice(one.name, dict(one.settings)) for one in plan.strategies)
    return tuple(plan)


def _all_ignored(batch: Any) -> bool:
    found = labels(batch)
    return found is not None and not found.is_floating_point() and bool((found == IGNORED).all())
