"""Peaks of a session's steps at a bearable price: a step is profiled when its kind is new, else its figure is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from memfit.jobs import batches
from memfit.monitor.measure import job_tensors, measure_peak

if TYPE_CHECKING:
    from memfit.jobs import Job

T = TypeVar("T")
Signature = tuple[tuple[tuple[int, ...], str], ...]

_PROFILED_KINDS = 8


class StepPeaks:
    """Peak tensor bytes, step by step.

    Tensor bytes on a CPU follow from the shapes of the batch, so a step is profiled (at about its own time again for
    small operators) only while its kind is new: the first step, which makes the optimizer's state; the first steady
    step; the first steps of up to eight other shapes; and any batch larger than all before. Other steps repeat the
    figure of their shapes, or of the largest batch seen, which bounds them.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._steady: dict[Signature, int] = {}
        self._largest = (0, 0)  # bytes of the batch, peak
        self._steps = 0
        self.highest_bytes = 0

    def run(self, batch: Any, step: Callable[[], T]) -> tuple[T, int, bool]:
        """`(step(), peak bytes, whether it was profiled)`."""
        signature = signature_of(batch)
        batch_bytes = sum(tensor.nbytes for tensor in batches.tensors(batch))
        known = self._steady.get(signature)
        many = self._steps > 1 and len(self._steady) >= _PROFILED_KINDS
        if known is None and many and batch_bytes <= self._largest[0]:
            known = self._largest[1]
        self._steps += 1
        if known is not None:
            return step(), known, False
        return *self._profile(batch, signature, batch_bytes, step), True

    def _profile(self, batch: Any, signature: Signature, batch_bytes: int, step: Callable[[], T]) -> tuple[T, int]:
        results: list[T] = []
        left_over = self._left_over_bytes()
        resident = job_tensors(self._job, batch, gradients=self._job.zero_grad == "after_step")
        peak = measure_peak(lambda: results.append(step()), resident) + left_over
        self.highest_bytes = max(self.highest_bytes, peak)
        if self._steps > 1:
            self._steady[signature] = peak
            self._largest = max(self._largest, (batch_bytes, peak))
        return results[0], peak

    def _left_over_bytes(self) -> int:
        """Gradients of the step before that live through this step's forward (the profiler misses their death, so
        that the peak is an upper bound there)."""
        if self._job.zero_grad != "before_backward":
            return 0
        return sum(p.grad.nbytes for p in self._job.model.parameters() if p.grad is not None)


def signature_of(batch: Any) -> Signature:
    """Shapes and dtypes of a batch's tensors, in order."""
    return tuple((tuple(tensor.shape), str(tensor.dtype)) for tensor in batches.tensors(batch))
