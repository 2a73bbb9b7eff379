"""What autograd saves in a forward, moved away and brought back in backward: each storage once, whatever views it has.

Method: hooks for saved tensors, https://pytorch.org/docs/stable/autograd.html#hooks-for-saved-tensors.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memfit.hooks.away import can_move
from memfit.jobs import mapped
from memfit.jobs.away import DISK, on_card
from memfit.strategies.exact.offload_activations.copies import IN_FLIGHT, Copies, wait_for
from memfit.strategies.exact.offload_activations.slots import Slots

_torch: Any = torch._C
_untracked = _torch._ExcludeDispatchKeyGuard
_VIEWS = _torch.DispatchKeySet(_torch.DispatchKey.ADInplaceOrView)
_running: ContextVar[Packing | None] = ContextVar("memfit_offload_packing", default=None)


class Moved:
    """One storage's values, in a slot. `readers` of what autograd holds have not had it yet."""

    def __init__(self, packing: Packing, flat: torch.Tensor, before: Moved | None) -> None:
        self._packing, self._count, self._dtype, self._device = packing, flat.numel(), flat.dtype, flat.device
        self._slot = packing.slots.take(flat.nbytes, flat)
        self._made: tuple[torch.Tensor, Any] | None = None
        self._card, self._fake = on_card(flat), isinstance(flat, FakeTensor)
        self.before = weakref.ref(before) if before is not None else None
        self.readers = 0
        packing.copies.out(flat, self._slot)

    def fetch(self) -> None:
        """Begin to bring it back, unless that has begun."""
        if self._made is None:
            self._made = self._packing.copies.back(self._slot, self._count, self._dtype, self._device)

    def will_be_needed(self) -> bool:
        """It comes next in backward: a card's copy begins now (True), or a disk is told."""
        if self._card:
            self.fetch()
        elif self._packing.slots.store.place == DISK and not self._fake:
            mapped.advise(self._slot.data_ptr(), self._slot.numel(), mapped.WILL_NEED)
        return self._card

    def value(self) -> torch.Tensor:
        """The values over the whole storage, one dimension."""
        self.fetch()
        assert self._made is not None
        made, event = self._made
        wait_for(event, self._device)
        return made

    def let_go(self) -> None:
        """Keep it in its slot only."""
        self._made = None

    def __del__(self) -> None:
        if hasattr(self, "_slot"):  # not where there was no room for one
            self._packing.slots.give_back(self._slot)


@dataclass(frozen=True)
class Packed:
    """What autograd holds in place of a saved tensor: a view of a storage that was moved."""

    moved: Moved
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class Packing:
    """The storages that are moved in a job's forwards. `within`: only while one of the chosen modules runs."""

    def __init__(self, slots: Slots, least_bytes: int, within: bool) -> None:
        self.slots, self.copies, self.depth = slots, Copies(), 0
        self._least_bytes, self._within = least_bytes, within
        self._known: set[int] = set()
        self._moved: dict[int, tuple[weakref.ref[Any], int, Moved]] = {}
        self._last: Moved | None = None
        self._near: OrderedDict[int, weakref.ref[Moved]] = OrderedDict()  # brought back, and with readers to come

    @contextmanager
    def forward(self, kept: Iterable[torch.Tensor]) -> Iterator[None]:
        """One forward. `kept` stay alive anyway (parameters, buffers, inputs): their storages are not moved."""
        self._near.clear()
        self._known = {tensor.untyped_storage()._cdata for tensor in kept if tensor.layout == torch.strided}
        token = _running.set(self)
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            _running.reset(token)
            self.copies.arrived()
            self._moved.clear()
            self._known.clear()
            self._last = None

    def _pack(self, tensor: torch.Tensor) -> Any:
        if (self._within and not self.depth) or not can_move(tensor):
            return tensor
        storage = tensor.untyped_storage()
        if storage.nbytes() < self._least_bytes or storage._cdata in self._known or storage.nbytes() % tensor.itemsize:
            return tensor
        moved = self._find(storage, tensor)
        moved.readers += 1
        return Packed(moved, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype)

    def _find(self, storage: Any, tensor: torch.Tensor) -> Moved:
        """Its values as they are now: one that was changed in place since it was moved is moved anew."""
        entry = self._moved.get(storage._cdata)
        if entry is not None and entry[0]() is storage and entry[1] == tensor._version:
            return entry[2]
        with torch.no_grad():
            flat = tensor.detach().as_strided((storage.nbytes() // tensor.itemsize,), (1,), 0)
            moved = Moved(self, flat, self._last)
        self._last = moved
        self._moved[storage._cdata] = (weakref.ref(storage), tensor._version, moved)
        return moved

    def _unpack(self, packed: Any) -> torch.Tensor:
        if not isinstance(packed, Packed):
            return packed
        moved = packed.moved
        with torch.no_grad():
            flat = moved.value()
            self._keep_near(moved)
        with _untracked(_VIEWS):  # no view of anything: a gradient among what is saved can be added to in place
            return flat.view(packed.dtype).as_strided(packed.size, packed.stride, packed.offset)

    def _keep_near(self, moved: Moved) -> None:
        """What others will read soon is kept, a few at most; what comes next in backward is on its way."""
        moved.readers -= 1
        self._near.pop(id(moved), None)
        if moved.readers > 0:
            self._enter(moved)
        else:
            moved.let_go()
        coming = moved.before() if moved.before is not None else None
        if coming is not None and coming.will_be_needed():
            self._enter(coming)

    def _enter(self, moved: Moved) -> None:
        self._near[id(moved)] = weakref.ref(moved)
        if len(self._near) > IN_FLIGHT:
            oldest = self._near.popitem(last=False)[1]()
            if oldest is not None:
                oldest.let_go()


def counted(entering: int) -> None:
    """A chosen module begins (1) or ends (-1)."""
    packing = _running.get()
    if packing is not None:
        packing.depth += entering
