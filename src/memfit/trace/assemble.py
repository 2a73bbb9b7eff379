"""A finished recording as a `Trace`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memfit.core.trace import Kind, ModuleCall, Op, Repeat, Storage, Trace
from memfit.trace.recording import Recording


def assemble(
    recording: Recording, categories: Sequence[str], calls: Sequence[ModuleCall], repeats: tuple[Repeat, ...],
    buffers: Mapping[int, Sequence[str]], took_s: float,
) -> Trace:
    """The trace of a recording. `buffers` names the model's buffers by the index of their storage."""
    order = sorted(range(len(recording.storages)), key=lambda index: not recording.storages[index][6])
    place = [0] * len(order)
    for new, old in enumerate(order):
        place[old] = new
    storages = tuple(_storage(recording.storages[old], categories[old]) for old in order)
    resident = sum(1 for row in recording.storages if row[6])
    moved = any(old != new for new, old in enumerate(order))
    events = recording.events
    if moved:
        events = [(kind, index if kind == Kind.OP else place[index]) for kind, index in events]
        calls = [_renumbered(call, place) for call in calls]
    ops = tuple(_op(row, place if moved else None) for row in recording.ops)
    written = sorted({name for index in recording.written for name in buffers.get(index, ())})
    keys = {place[index]: key for index, key in recording.keys.items()}
    return Trace(storages, tuple(events), ops, resident, tuple(recording.phases), tuple(calls), repeats, tuple(written), took_s,
                 keys=keys)


def _storage(row: list[object], category: str) -> Storage:
    nbytes, phase, module, operator, shape, dtype, _, place, away = row
    return Storage(nbytes, category, phase, module, operator, tuple(shape), str(dtype)[6:], place, away)  # type: ignore[arg-type]


def _op(row: tuple[object, ...], place: list[int] | None) -> Op:
    if place is None:
        return Op(*row)  # type: ignore[arg-type]
    *start, reads, writes, buffers, workspace, autograd = row
    moved = (tuple(place[i] for i in indices) for indices in (reads, writes))  # type: ignore[union-attr]
    return Op(*start, *moved, buffers, workspace, autograd)  # type: ignore[arg-type]


def _renumbered(call: ModuleCall, place: list[int]) -> ModuleCall:
    return ModuleCall(call.path, call.start, call.stop, tuple(place[i] for i in call.inputs),
                      tuple(place[i] for i in call.outputs), call.depth)
