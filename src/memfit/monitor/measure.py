"""The peak of tensor bytes in a real step, by the profiler's memory events; it shares nothing with `trace`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

from memfit.jobs import batches
from memfit.jobs.away import place_of
from memfit.jobs.wrapped import plain_parts

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
    sizes = storage_sizes(resident)
    with _quiet_profiler(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        if lead_in is not None:
            lead_in()
        with record_function(_MARK):
            step()
    return sum(sizes.values()) + _highest_sum(profiler, sizes)


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
    """Bytes of the distinct storages under the tensors; views and tied weights count once, what is away not at all."""
    return sum(storage_sizes(tensors).values())


def storage_sizes(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Bytes of the distinct storages by their address, without those that are away (on disk, say)."""
    storages = [part.untyped_storage() for tensor in tensors for part in plain_parts(tensor)]
    return {storage.data_ptr(): storage.nbytes() for storage in storages if not place_of(storage)}


def _highest_sum(profiler: profile, resident: dict[int, int]) -> int:
    """The highest running sum of allocations since the profiler began, from the mark on.

    A death counts if its birth was seen, or if it is a resident storage's. Others are left over from an earlier
    profile: the profiler keeps its table of blocks, and takes a new block for an old one at the same address.
    """
    alive: dict[int, int] = {}
    before = dict(resident)
    current = highest = 0
    measuring = False
    for address, size in _allocations(profiler):
        if size is None:
            measuring = True
        elif size >= 0:
            current += size - alive.get(address, 0)
            alive[address] = size
        else:
            current -= alive.pop(address, 0) or before.pop(address, 0)
        if measuring:
            highest = max(highest, current)
    return highest


def _allocations(profiler: profile) -> list[tuple[int, int | None]]:
    """`(address, bytes)` in time's order, bytes negative for a death; `(0, None)` where the measured step begins."""
    results: Any = profiler.profiler
    waiting = list(results.kineto_results.experimental_event_tree())
    found: list[tuple[int, int, int | None]] = []
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
        elif event.name == _MARK:
            found.append((event.start_time_ns, 0, None))
    found.sort(key=lambda one: one[0])
    return [(address, size) for _, address, size in found]


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
