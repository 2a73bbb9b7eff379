"""Tracing the first and the steady-state step of a job."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from memfit.core.errors import MemfitError, Untraceable
from memfit.core.trace import Kind, Op, Repeat, Storage, Trace
from memfit.jobs import Job, batches, run_step
from memfit.trace.categories import categorise
from memfit.trace.fakes import FakeWorld, fake_job
from memfit.trace.modules import ModuleStack, module_stack
from memfit.trace.recorder import Recording, RecordingMode


@dataclass(frozen=True)
class Traces:
    """The first step (optimizer state not there yet) and the steady state."""

    first: Trace
    steady: Trace


def trace_job(job: Job) -> Traces:
    """Both steps of a job, on a fake copy of it. Raises Untraceable, naming operator and module."""
    world = FakeWorld()
    fake = fake_job(job, world)
    return Traces(trace_step(fake, world), trace_step(fake, world))


def trace_step(fake: Job, world: FakeWorld) -> Trace:
    """One step of a fake job (its optimizer state moves on, as in a real step)."""
    began = time.perf_counter()
    mode, recording = world.mode, Recording()
    parts, repeat = _window(fake)
    marks: list[int] = []

    def on_phase(name: str, index: int) -> None:
        if name == "forward" and repeat:
            marks.append(len(recording.events))
        if name == "optimizer" and repeat:
            marks.append(len(recording.events))
        mode.begin_phase(name)

    with _no_collection(), mode.record(recording):
        mode.begin_phase("before")
        _adopt_resident(fake, mode)
        with module_stack(fake.model, mode) as stack, _gradients_noted(fake, mode) as gradients:
            _run(fake, parts, mode, stack, on_phase)
        mode.begin_phase("after")
        categories = categorise(fake, mode, recording, gradients)
    return _as_trace(recording, categories, stack, marks, repeat, time.perf_counter() - began, fake)


def _run(fake: Job, parts: list[Any], mode: RecordingMode, stack: ModuleStack, on_phase: Callable[[str, int], None]) -> None:
    batch = fake.batch
    try:
        with mode:
            run_step(fake, batch, on_phase=on_phase, parts=parts)
    except MemfitError:
        raise
    except Exception as error:
        operator = mode.last_operator
        where = stack.path() or mode.last_module or type(fake.model).__name__
        text = str(error).strip().splitlines()
        raise Untraceable(
            f"the step cannot be traced: {operator} in {where}: {type(error).__name__}: {text[0] if text else ''}",
            "allow one real step to be measured instead (measure=True, or --set), or make the shape independent of values",
        ) from error


def _window(fake: Job) -> tuple[list[Any], int]:
    """The window's parts to trace, and how often the middle one stands for itself and others (0: no repeat)."""
    parts = batches.split(fake.batch, fake.rules.micro_batches)
    if len(parts) <= 3:
        return parts, 0
    return [parts[0], parts[1], parts[-1]], len(parts) - 2


def _adopt_resident(fake: Job, mode: RecordingMode) -> None:
    with mode.silent():
        for parameter in fake.model.parameters():
            mode.adopt(parameter, "parameters")
            if parameter.grad is not None:
                mode.adopt(parameter.grad, "gradients")
        for buffer in fake.model.buffers():
            mode.adopt(buffer, "buffers")
        for state in fake.optimizer.state.values():
            for tensor in batches.tensors(state):
                mode.adopt(tensor, "optimizer_state")
        for tensor in batches.tensors(fake.batch):
            mode.adopt(tensor, "inputs")


@contextmanager
def _gradients_noted(fake: Job, mode: RecordingMode) -> Iterator[set[int]]:
    """Storages that were some parameter's gradient at any time of the step."""
    noted: set[int] = set()

    def note(parameter: torch.Tensor) -> None:
        if parameter.grad is not None and mode.recording is not None:
            noted.add(mode.adopt(parameter.grad, "gradients"))

    handles = [p.register_post_accumulate_grad_hook(note) for p in fake.model.parameters() if p.requires_grad]
    try:
        yield noted
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _no_collection() -> Iterator[None]:
    """A collection in the middle would kill storages at a random place; real training has them too, rarely."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _as_trace(
    recording: Recording, categories: list[str], stack: ModuleStack, marks: list[int], repeat: int, took_s: float, fake: Job
) -> Trace:
    order = sorted(range(len(recording.storages)), key=lambda i: not recording.storages[i][6])
    place = {old: new for new, old in enumerate(order)}
    storages = []
    for old in order:
        nbytes, phase, module, op, shape, dtype, _ = recording.storages[old]
        storages.append(Storage(nbytes, categories[old], phase, module, op, shape, dtype))
    resident = sum(1 for row in recording.storages if row[6])
    events = tuple((kind, index if kind == Kind.OP else place[index]) for kind, index in recording.events)
    ops = tuple(
        Op(*row[:8], reads=tuple(place[i] for i in row[8]), writes=tuple(place[i] for i in row[9])) for row in recording.ops)
    calls = tuple(
        type(call)(call.path, call.start, call.stop, tuple(place[i] for i in call.inputs),
                   tuple(place[i] for i in call.outputs), call.depth) for call in stack.calls)
    repeats = (Repeat(marks[1], marks[2], repeat),) if repeat else ()
    names = {old: name for name, old in _buffer_indices(fake, recording, categories)}
    mutated = tuple(sorted(names[i] for i in recording.mutated if i in names))
    return Trace(tuple(storages), events, ops, resident, tuple(recording.phases), calls, repeats, mutated, took_s)


def _buffer_indices(fake: Job, recording: Recording, categories: list[str]) -> list[tuple[str, int]]:
    buffers = [i for i, category in enumerate(categories) if category == "buffers" and recording.storages[i][6]]
    unique: list[str] = []
    seen: set[int] = set()
    for name, buffer in fake.model.named_buffers():
        key = buffer.untyped_storage()._cdata
        if key not in seen:
            seen.add(key)
            unique.append(name)
    return list(zip(unique, buffers, strict=False))
