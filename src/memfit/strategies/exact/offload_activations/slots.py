"""Room for what is moved, used again in every forward."""

from __future__ import annotations

from collections import defaultdict

import torch

from memfit.core.errors import UsageError
from memfit.hooks.away import Store

_STEPS = 8  # sizes between a power of two and the next: a slot is at most an eighth too large


class Slots:
    """Tensors of bytes (`uint8`) in a store's place, by size; one that is given back is the next of its size."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._free: dict[int, list[torch.Tensor]] = defaultdict(list)

    def take(self, nbytes: int, like: torch.Tensor) -> torch.Tensor:
        """At least `nbytes`; fake where `like` is. Raises UsageError if the place is full, even without the free slots."""
        size = slot_bytes(nbytes)
        if self._free[size]:
            return self._free[size].pop()
        try:
            return self._made(size, like)
        except UsageError:
            if not any(self._free.values()):
                raise
            self._give_up_free()
            return self._made(size, like)

    def give_back(self, slot: torch.Tensor) -> None:
        self._free[slot.numel()].append(slot)

    def _made(self, size: int, like: torch.Tensor) -> torch.Tensor:
        return self.store.empty(like, (size,), (1,), torch.uint8)

    def _give_up_free(self) -> None:
        """Slots of sizes that are not needed now: batches of other lengths had them."""
        for slots in self._free.values():
            while slots:
                self.store.made_bytes -= slots.pop().numel()


def slot_bytes(nbytes: int) -> int:
    """`nbytes` rounded up to an eighth of a power of two."""
    step = max(1, (1 << (nbytes - 1).bit_length()) // (2 * _STEPS)) if nbytes > 1 else 1
    return -(-nbytes // step) * step
