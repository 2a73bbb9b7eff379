"""The peak of tensor bytes in a real step, by the profiler's memory events; it shares nothing with `trace`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from memfit.jobs import batches

if TYPE_CHECKING:
    from memfit.jobs import Job

_MARK = "memfit.measured_step"


def measure_peak(
    step: Callable[[], Any], resident: Iterable[torch.Tensor], lead_in: Callable[[], Any] | None = None
) -> int:
    """Peak tensor bytes while `step()` runs once: the bytes of `resident` plus the highest running sum of the
    profiler's memory events.

    The profiler does not report the death of what was born before it started. Where the step frees such tensors
    (gradients of the step before), leave them out of `resident` and give `lead_in`: a step that is profiled first, so
    that its births are known and counted.
    """
    before = storage_bytes(resident)
    with _quiet_profiler(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        if lead_in is not None:
            lead_in()
        with record_function(_MARK):
            step()
    return before + _highest_sum(profiler)


def measure_step(job: Job, step: Callable[[], Any]) -> int:
    """`measure_peak` of a steady-state step of the job; where gradients live on between steps it runs twice."""
    if job.zero_grad == "after_step":
        return measure_peak(step, job_tensors(job, gradients=True))
    return measure_peak(step, job_tensors(job, gradients=False), lead_in=step)


def job_tensors(job: Job, batch: Any = None, *, gradients: bool = True) -> Iterator[torch.Tensor]:
    """What is resident before a step: parameters, buffers, batch, optimizer state and gradients left over."""
    yield from job.model.parameters()
    yield from job.model.buffers()
    yield from batches.tensors(job.batch if batch is None else batch)
    for state in job.optimizer.state.values():
        yield from batches.tensors(state)
    if gradients:
        yield from (parameter.grad for parameter in job.model.parameters() if parameter.grad is not None)


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the distinct storages under the tensors; views and tied weights count once."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors inside a wrapper subclass (8-bit states), or the tensor itself; sparse ones by their parts."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        for name in flatten()[0]:
            yield from _parts(getattr(tensor, name))
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    else:
        yield tensor


def _highest_sum(profiler: profile) -> int:
    """The highest running sum of allocations since the profiler began, from the mark on."""
    results: Any = profiler.profiler
    events = results.kineto_results.events()
    start = min((event.start_ns() for event in events if event.name() == _MARK), default=0)
    current = highest = 0
    for event in events:
        if event.name() == "[memory]":
            current += event.nbytes()
            if event.start_ns() >= start:
                highest = max(highest, current)
    return highest


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Kineto reads its log level once, at the first use, and writes lines to stderr otherwise."""
    given = os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        yield
    finally:
        if given is None:
            os.environ.pop("KINETO_LOG_LEVEL", None)
