"""Tracing the first and the steady-state step of a job."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from memfit.core.device import Device
from memfit.core.errors import MemfitError, Untraceable
from memfit.core.trace import Repeat, Trace
from memfit.jobs import Job, batches, run_step
from memfit.jobs.blame import users_line
from memfit.jobs.wrapped import plain_parts
from memfit.trace.assemble import assemble
from memfit.trace.building import (
    clear_caches_holding,
    converting,
    no_collection,
    quiet_failures,
    random_states_kept,
    unrecognised,
)
from memfit.trace.categories import categorise
from memfit.trace.compiled_steps import compiled_steps
from memfit.trace.cuda import CudaTarget, target_of
from memfit.trace.drawing import draws_random
from memfit.trace.fakes import FakeWorld, fake_job
from memfit.trace.modules import module_stack
from memfit.trace.recorder import RecordingMode
from memfit.trace.recording import Recording


@dataclass(frozen=True)
class Traces:
    """The first step (optimizer state not there yet) and the steady state."""

    first: Trace
    steady: Trace


def trace_job(job: Job, device: Device | CudaTarget | None = None) -> Traces:
    """Both steps of a job, on a fake copy of it, as a device would run them (None: the CPU). Raises Untraceable, naming
    operator and module."""
    world = FakeWorld(target_of(device))
    fake = fake_job(job, world)
    return Traces(trace_step(fake, world), trace_step(fake, world))


def trace_step(fake: Job, world: FakeWorld, *, repeat: bool = True) -> Trace:
    """One step of a fake job (its optimizer state moves on, as in a real step).

    A window of more than two micro-batches is traced as its first two, and the second one's events stand for all that
    follow; where the course of a forward depends on values, the first is traced once more, and stands for them. With
    `repeat=False` every one is traced.
    """
    began = time.perf_counter()
    mode, recording = world.mode, Recording()
    parts, times = _window(fake, repeat)
    marks: list[int] = []  # where the forward of each part and the optimizer begin

    def on_phase(name: str, index: int) -> None:
        if name != "backward":
            marks.append(len(recording.events))
        recording.begin_phase(name)

    weight = fake.weight
    if fake.rules.release is not None:
        fake.rules.release.settle()
    if len(parts) > 1:
        fake.weight = _counts_one  # a part that would be left out needs no more memory than one that counts
    with (world.semantics(), quiet_failures(), no_collection(), random_states_kept(), converting(), unrecognised(),
          mode.record(recording)):
        recording.begin_phase("before")
        _adopt_resident(fake, recording, world.target is not None)
        buffers = _buffers(fake, recording)
        with module_stack(fake.model, mode) as stack, _gradients_noted(fake, recording) as gradients:
            _run(fake, parts, mode, on_phase)
        recording.begin_phase("after")
        recording.written.update(_replaced(fake, recording, buffers))
        categories = categorise(fake, recording, gradients)
        strangers = _strangers(recording, categories)
    fake.weight = weight
    fake.draws_random = fake.draws_random or draws_random(recording.ops)
    fake.reads_values = fake.reads_values or recording.reads_values
    if strangers:
        clear_caches_holding(mode)
    repeats = (Repeat(marks[-2], marks[-1], times),) if times else ()
    return assemble(recording, categories, stack.calls, repeats, buffers, time.perf_counter() - began)


def _run(fake: Job, parts: list[Any], mode: RecordingMode, on_phase: Callable[[str, int], None]) -> None:
    try:
        with compiled_steps(mode), mode:
            run_step(fake, fake.batch, on_phase=on_phase, parts=parts)
    except MemfitError:
        raise
    except Exception as error:
        raise _untraceable(fake, mode, error) from error


def _untraceable(fake: Job, mode: RecordingMode, error: Exception) -> Untraceable:
    """What failed, with the operator and module that it failed in if it was in one, and the user's line."""
    text = str(error).strip().splitlines()
    where = mode.module or mode.last_module or type(fake.model).__name__
    operator = f"{mode.last_operator} in {where}: " if mode.last_operator else ""
    line = users_line(error)
    advice = "if it runs in plain PyTorch, it can be measured: memfit estimate TARGET --measure"
    what = f"{type(error).__name__}: {text[0] if text else 'no message'}"
    return Untraceable(f"the step cannot be traced: {operator}{what}", f"see {line}; {advice}" if line else advice)


def _window(fake: Job, repeat: bool) -> tuple[list[Any], int]:
    """The window's parts to trace, and how often the last of them is run (0: no repeat).

    The first part finds no gradients; the second finds them, as do all others, which are no larger.
    """
    count = fake.rules.micro_batches
    if count > 2:
        count = min(count, batches.size(fake.batch))
    if not repeat:
        return batches.split(fake.batch, count), 0
    parts = batches.split(fake.batch, count, first=2)
    if count > 2 and fake.reads_values:  # a mask that is dropped where it masks nothing: later parts may go as the first one
        return [*parts, parts[0]], count - 2
    return parts, count - 1 if count > 2 else 0


def _counts_one(part: Any) -> float:
    return 1.0


def _adopt_resident(fake: Job, recording: Recording, on_card: bool) -> None:
    if on_card:
        _adopt_as_moved(fake.model, recording)
    for parameter in fake.model.parameters():
        recording.index_of(parameter, "parameters")
        if parameter.grad is not None:
            recording.index_of(parameter.grad, "gradients")
    for buffer in fake.model.buffers():
        recording.index_of(buffer, "buffers")
    for state in fake.optimizer.state.values():
        for tensor in batches.tensors(state):
            for part in plain_parts(tensor):
                recording.index_of(part, "optimizer_state")
    for tensor in batches.tensors(fake.batch):
        recording.index_of(tensor, "inputs")


def _adopt_as_moved(module: torch.nn.Module, recording: Recording) -> None:
    """In the order in which `model.to(card)` copies: children first, then a module's own parameters and buffers."""
    for child in module.children():
        _adopt_as_moved(child, recording)
    for parameter in module._parameters.values():
        if parameter is not None:
            recording.index_of(parameter, "parameters")
    for buffer in module._buffers.values():
        if buffer is not None:
            recording.index_of(buffer, "buffers")


def _buffers(fake: Job, recording: Recording) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name, buffer in fake.model.named_buffers():
        names.setdefault(recording.index_of(buffer), []).append(name)
    return names


def _replaced(fake: Job, recording: Recording, before: dict[int, list[str]]) -> set[int]:
    """Storages of buffers that the model put another tensor in place of, instead of writing into them."""
    now = {name: recording.index_of(buffer) for name, buffer in fake.model.named_buffers()}
    return {index for index, names in before.items() if any(now.get(name) != index for name in names)}


def _strangers(recording: Recording, categories: list[str]) -> bool:
    """Whether something that the step made on the device outlives it and is neither gradient nor optimizer state."""
    rows = recording.storages
    return any(not (rows[index][6] or rows[index][7]) and categories[index] not in ("gradients", "optimizer_state")
               for index in recording.live.values())


@contextmanager
def _gradients_noted(fake: Job, recording: Recording) -> Iterator[set[int]]:
    """Storages that were some parameter's gradient at any time of the step."""
    noted: set[int] = set()

    def note(parameter: torch.Tensor) -> None:
        if parameter.grad is not None and parameter.grad.layout == torch.strided:
            noted.add(recording.index_of(parameter.grad, "gradients"))

    handles = [p.register_post_accumulate_grad_hook(note) for p in fake.model.parameters() if p.requires_grad]
    listening, fake.rules.on_parameter_gradient = fake.rules.on_parameter_gradient, note  # they are gone when hooks see them
    try:
        yield noted
    finally:
        fake.rules.on_parameter_gradient = listening
        for handle in handles:
            handle.remove()
