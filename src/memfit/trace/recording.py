"""What one traced step leaves: events, storages and operators in order."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from memfit.core.trace import Kind
from memfit.jobs.away import birthplace, mark, place_of


class Recording:
    """Columns of a trace in the making; `memfit.trace.assemble` turns them into a `Trace`.

    `storages` rows are `[nbytes, phase, module, operator, shape, dtype, resident, place, away_bytes]`, `ops` rows the fields
    of `core.Op`.
    """

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        self.storages: list[list[Any]] = []
        self.ops: list[tuple[Any, ...]] = []
        self.phases: list[tuple[str, int]] = []
        self.written: set[int] = set()  # storages that an operator of the forward wrote into
        self.reads_values = False  # whether a forward's course depended on the values of its batch
        self.phase = "before"
        self.live: dict[int, int] = {}  # storage address -> index
        self.keys: dict[int, int] = {}  # index -> storage address, of those resident before and alive afterwards
        self._watchers: dict[int, Any] = {}

    def begin_phase(self, name: str) -> None:
        self.phase = name
        self.phases.append((name, len(self.events)))

    def index_of(self, tensor: torch.Tensor, category: str = "resident") -> int:
        """The index of a tensor's storage; one that is met for the first time was resident before the step."""
        storage = tensor.untyped_storage()
        index = self.live.get(storage._cdata)
        return self.birth(storage, tensor, category, "", resident=True) if index is None else index

    def birth(self, storage: Any, tensor: torch.Tensor, module: str, operator: str, *, resident: bool) -> int:
        """A new storage, watched until it dies."""
        index, key = len(self.storages), storage._cdata
        place, nbytes = place_of(storage), storage.nbytes()
        if not (place or resident) and (place := birthplace()):
            mark(storage, place)
        here, away = (0, nbytes) if place else (nbytes, 0)
        self.storages.append([here, self.phase, module, operator, tensor.shape, tensor.dtype, resident, place, away])
        events, live, watchers = self.events, self.live, self._watchers
        live[key] = index

        def died(_: Any) -> None:
            if live.get(key) == index:
                del live[key], watchers[key]
                events.append((Kind.DEATH, index))

        watchers[key] = weakref.ref(storage, died)
        if resident:
            self.keys[index] = key
        else:
            events.append((Kind.BIRTH, index))
        return index

    def operator(self, row: tuple[Any, ...]) -> None:
        """An operator ran; its outputs' births came before."""
        self.events.append((Kind.OP, len(self.ops)))
        self.ops.append(row)

    def close(self) -> None:
        """Stop watching. What is alive stays as it is."""
        self.keys.update((index, key) for key, index in self.live.items())
        self.live.clear()
        self._watchers.clear()
