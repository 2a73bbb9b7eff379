"""An estimate by measurement, for a step that cannot be traced: real steps run here, under the profiler."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from memfit.core.results import AtPeak, Estimate, LargeTensor, Peak
from memfit.core.strategy import Choice
from memfit.core.trace import CATEGORIES
from memfit.jobs import Job, batches
from memfit.launch import resident_bytes
from memfit.monitor.measure import measure_step, storage_bytes
from memfit.train.session import Session

_LARGEST = 10
_HOW = "measured in three real steps: the first, a steady one, and one without the profiler for the time"
_UNKNOWN = "a measurement does not tell what the step itself holds at the peak: all of it counts as activations"

Resident = tuple[str, str, torch.Tensor]
"""Category, name, tensor."""


def measured_estimate(job: Job, target: str = "", *, choices: Sequence[Choice] = (), why: str = "") -> Estimate:
    """What the job's step needs on `cpu`, by running it: the job is trained three steps on its batch.

    `why` (the step could not be traced, say) is noted. Raises UsageError and RanOutOfMemory as `Session.step` does.
    """
    began = time.perf_counter()
    with Session(job, choices, profile_peaks=False) as session:
        first_bytes = measure_step(job, session.step)
        peak_bytes = measure_step(job, session.step)
        step_s = session.step().step_s
        resident = list(_resident(job))
        notes = (*([why] if why else []), _HOW, _UNKNOWN, *session.notes)
        return Estimate(
            target=target or job.name, device="cpu", peak=_exactly(peak_bytes), first_step_peak_bytes=first_bytes,
            at_peak=AtPeak("", "", "", _by_category(resident, peak_bytes)), largest=_largest(resident), step_s=step_s,
            took_s=time.perf_counter() - began, measured=True, notes=notes)


def _exactly(peak_bytes: int) -> Peak:
    return Peak(*[peak_bytes] * 6, process_bytes=max(peak_bytes, resident_bytes()),
                low_bytes=peak_bytes, high_bytes=peak_bytes)


def _resident(job: Job) -> Iterator[Resident]:
    """What lives between two steps; each storage once, under the first category that holds it."""
    seen: set[int] = set()
    for category, name, tensor in _named(job):
        if tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() not in seen:
            seen.add(tensor.untyped_storage().data_ptr())
            yield category, name, tensor


def _named(job: Job) -> Iterator[Resident]:
    names = {id(parameter): name for name, parameter in job.model.named_parameters()}
    yield from (("parameters", name, parameter) for name, parameter in job.model.named_parameters())
    yield from (("buffers", name, buffer) for name, buffer in job.model.named_buffers())
    yield from (("inputs", "", tensor) for tensor in batches.tensors(job.batch))
    for parameter, state in job.optimizer.state.items():
        yield from (("optimizer_state", names.get(id(parameter), ""), tensor) for tensor in batches.tensors(state))
    yield from (("gradients", name, p.grad) for name, p in job.model.named_parameters() if p.grad is not None)


def _by_category(resident: Sequence[Resident], peak_bytes: int) -> dict[str, int]:
    held = dict.fromkeys(CATEGORIES, 0)
    for category, _, tensor in resident:
        held[category] += storage_bytes([tensor])
    held["activations"] = max(0, peak_bytes - sum(held.values()))
    return held


def _largest(resident: Sequence[Resident]) -> tuple[LargeTensor, ...]:
    """The largest of what lives between two steps."""
    sized = sorted(((storage_bytes([tensor]), category, name, tensor) for category, name, tensor in resident),
                   key=lambda one: -one[0])
    return tuple(LargeTensor(size, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), name, "", category)
                 for size, category, name, tensor in sized[:_LARGEST])
