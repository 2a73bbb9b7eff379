"""A job's evaluation as a phase of its own: the loss of a batch in evaluation mode, with a graph or without."""

from __future__ import annotations

import time

import torch

from memfit.core.errors import MemfitError
from memfit.core.trace import Trace
from memfit.jobs import Job, batches
from memfit.jobs.modes import evaluating
from memfit.trace.assemble import assemble
from memfit.trace.building import converting, no_collection, quiet_failures, random_states_kept, unrecognised
from memfit.trace.categories import categorise
from memfit.trace.fakes import FakeWorld
from memfit.trace.modules import module_stack
from memfit.trace.recording import Recording
from memfit.trace.steps import _adopt_as_moved, _buffers, _untraceable  # the same marks on the same recording


def trace_evaluation(fake: Job, world: FakeWorld, *, graph: bool = False) -> Trace:
    """`loss(model, batch)` of a fake job in evaluation mode. Nothing but parameters, buffers and the batch is resident.

    Raises Untraceable, naming operator and module.
    """
    began = time.perf_counter()
    mode, recording = world.mode, Recording()
    with (world.semantics(), quiet_failures(), no_collection(), random_states_kept(), converting(), unrecognised(),
          evaluating(fake.model), mode.record(recording)):
        recording.begin_phase("before")
        _adopt(fake, recording, world.target is not None)
        buffers = _buffers(fake, recording)
        with module_stack(fake.model, mode) as stack:
            _run(fake, world, recording, graph)
        recording.begin_phase("after")
        categories = categorise(fake, recording, set())
    return assemble(recording, categories, stack.calls, (), buffers, time.perf_counter() - began)


def outputs_bytes(trace: Trace, samples: int) -> int:
    """Bytes of what the model gives for a batch of so many samples: its outputs that have a row for each, or several."""
    whole = [call for call in trace.calls if call.path == ""]
    if not whole:
        return 0
    given = (trace.storages[index] for index in whole[-1].outputs)
    return sum(one.nbytes for one in given if one.category not in ("inputs", "parameters") and one.shape
               and one.shape[0] % samples == 0)


def _run(fake: Job, world: FakeWorld, recording: Recording, graph: bool) -> None:
    recording.begin_phase("forward")
    try:
        with world.mode, torch.set_grad_enabled(graph):
            fake.loss(fake.model, fake.batch)
    except MemfitError:
        raise
    except Exception as error:
        raise _untraceable(fake, world.mode, error) from error


def _adopt(fake: Job, recording: Recording, on_card: bool) -> None:
    if on_card:
        _adopt_as_moved(fake.model, recording)
    for category, tensors in (("parameters", fake.model.parameters()), ("buffers", fake.model.buffers()),
                              ("inputs", batches.tensors(fake.batch))):
        for tensor in tensors:
            recording.index_of(tensor, category)
