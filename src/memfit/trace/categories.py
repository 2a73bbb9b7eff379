"""What each storage was for."""

from __future__ import annotations

from memfit.core.trace import CATEGORIES, Kind
from memfit.jobs import Job, batches
from memfit.jobs.wrapped import plain_parts
from memfit.trace.recording import Recording


def categorise(fake: Job, recording: Recording, gradients: set[int]) -> list[str]:
    """A category for every storage of the recording, while the step's survivors are still alive."""
    states = {recording.index_of(part) for state in fake.optimizer.state.values() for tensor in batches.tensors(state)
              for part in plain_parts(tensor)}
    outlive = _outliving_forward(recording)
    return [_category(index, row, gradients, states, outlive) for index, row in enumerate(recording.storages)]


def _outliving_forward(recording: Recording) -> set[int]:
    """Storages born in a forward and alive when it ends: what is saved for backward."""
    ends = [at for name, at in recording.phases if name == "backward"]
    alive: set[int] = set()
    outlive: set[int] = set()
    for position, (kind, index) in enumerate(recording.events):
        while ends and position >= ends[0]:
            outlive |= alive
            alive.clear()
            ends.pop(0)
        if kind == Kind.BIRTH:
            if recording.storages[index][1] == "forward":
                alive.add(index)
        elif kind == Kind.DEATH:
            alive.discard(index)
    return outlive


def _category(index: int, row: list[object], gradients: set[int], states: set[int], outlive: set[int]) -> str:
    hint, resident = row[2], row[6]
    if index in gradients:
        return "gradients"
    if index in states:
        return "optimizer_state"
    if resident:
        return str(hint) if hint in CATEGORIES else "inputs"
    return "activations" if index in outlive else "temporaries"
