"""A traced training step: storages being born and dying in order, and the operators that made them. No torch.

A trace holds no number that depends on a device's allocator; `memfit.simulate` turns it into peaks and time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class Kind(IntEnum):
    """What an event says of its index."""

    BIRTH = 0  # index into Trace.storages
    DEATH = 1  # index into Trace.storages
    OP = 2  # index into Trace.ops; follows the births of the operator's outputs


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage (never a view). `category` is one of CATEGORIES, `phase` where it was born. One that is not on the device has
    no `nbytes` there, but `away_bytes` in its `place` (`host`, `disk`)."""

    nbytes: int
    category: str
    phase: str
    module: str
    op: str
    shape: tuple[int, ...]
    dtype: str
    place: str = ""
    away_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Its bytes, wherever they are."""
        return self.nbytes + self.away_bytes


CATEGORIES: tuple[str, ...] = (
    "parameters", "gradients", "optimizer_state", "activations", "inputs", "buffers", "temporaries", "workspace")


@dataclass(frozen=True, slots=True)
class Op:
    """One operator call. `bytes_moved` counts inputs read and outputs written; `recomputed` marks work done again
    in backward for a forward result; `scratch_bytes` live inside the kernel only; `reads` and `writes` index storages.
    `buffers` are the parts of the scratch memory where it has several; `workspace` says how little and how much a library
    may take in place of `scratch_bytes` (low, typical, high), None where it is settled. `autograd`: it runs inside a node of
    the graph, which on a card is another thread."""

    name: str
    phase: str
    module: str
    flops: int
    bytes_moved: int
    scratch_bytes: int
    dtype: str
    recomputed: bool = False
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    buffers: tuple[int, ...] = ()
    workspace: tuple[int, int, int] | None = None
    autograd: bool = False


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module in forward: its events lie in `[start, stop)`, its tensor inputs and outputs are storages."""

    path: str
    start: int
    stop: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Events `[start, stop)` stand for `count` equal passes (a middle micro-batch)."""

    start: int
    stop: int
    count: int


@dataclass(frozen=True)
class Trace:
    """`resident` storages (the first ones) are alive before the step; `events` are `(Kind, index)` pairs.

    `phases` are `(name, first event)` in order. `mutated_buffers` are the names of buffers that forward writes to.
    `keys` tell storages apart across the steps of one job: of those resident before and those alive afterwards, by index.
    """

    storages: tuple[Storage, ...]
    events: tuple[tuple[int, int], ...]
    ops: tuple[Op, ...]
    resident: int
    phases: tuple[tuple[str, int], ...] = ()
    calls: tuple[ModuleCall, ...] = ()
    repeats: tuple[Repeat, ...] = ()
    mutated_buffers: tuple[str, ...] = ()
    took_s: float = 0.0
    notes: tuple[str, ...] = field(default_factory=tuple)
    keys: Mapping[int, int] = field(default_factory=dict)

    @property
    def resident_bytes(self) -> int:
        """Bytes alive before the step starts."""
        return sum(storage.nbytes for storage in self.storages[: self.resident])

    def weights(self) -> Iterator[int]:
        """How often each event happens: 1, or the count of the repeat that it lies in."""
        spans = {start: repeat for repeat in self.repeats for start in (repeat.start,)}
        stop, count = -1, 1
        for position in range(len(self.events)):
            if position in spans:
                stop, count = spans[position].stop, spans[position].count
            yield count if position < stop else 1
