"""What autograd saved, by storage: kept as it is while the forward still holds it, then in as few bytes as backward needs."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from memfit.hooks.recipes import Recipe, View
from memfit.strategies.exact.compress_activations.codecs import (
    narrowest,
    pack_bits,
    pack_blocks,
    unpack_bits,
    unpack_blocks,
)
from memfit.strategies.exact.compress_activations.needs import KEPT, SHAPE, VALUE, Gate, Need, Range

LEAST_BYTES = 2048
LEAST_NUMBERS = 2048  # fewer floating-point numbers than this keep their precision

Scaling = tuple[Callable[..., Any], tuple[Any, ...]]  # an in-place operator, and what it takes beside the tensor


@dataclass
class Born:
    """A storage that this forward made. `scalings`: what was done to drawn zeros and ones, None if it is something else;
    `auxiliary`: no operator's main result; `range`: of the positions in it."""

    storage: weakref.ref[Any]
    auxiliary: bool = False
    scalings: tuple[Scaling, ...] | None = None
    range: Range | None = None
    saved: weakref.ref[Saved] | None = None


class Saved:
    """A storage that autograd saved. `held` is a tensor in it, until it is compressed: then there is a recipe for each need."""

    def __init__(self, tensor: torch.Tensor, born: Born) -> None:
        storage = tensor.untyped_storage()
        self.count = storage.nbytes() // tensor.element_size()
        self.held: torch.Tensor | None = tensor.detach()
        self.dtype = tensor.dtype
        self.needs: Counter[Need] = Counter()
        self._born = born
        self._address = storage._cdata
        self._range: Range | None = born.range
        self._recipes: dict[Need, Recipe] = {}

    def widen(self, limits: Range | None) -> None:
        """The storage holds indices within these limits, too."""
        if limits is not None:
            held = self._range or limits
            self._range = min(held[0], limits[0]), max(held[1], limits[1])

    def only_ours(self) -> bool:
        """Whether nothing else holds the storage any more: no variable of the forward, no view, no other node."""
        return torch._C._storage_Use_Count(self._address) <= _held_once()

    def compress(self, bits: int | None) -> None:
        """Put recipes in the storage's place if that serves every need; floating-point numbers to `bits` (None: exactly)."""
        needs = set(self.needs)
        if self.held is None or KEPT in needs:
            return
        flat = self.held.as_strided((self.count,), (1,), 0)
        exact = self._exactly(flat) if VALUE in needs or not self.dtype.is_floating_point else None
        if exact is None and VALUE in needs and not (bits and self._may_lose()):
            return
        recipes: dict[Need, Recipe] = {}
        if exact is not None:
            recipes = dict.fromkeys(needs, exact)
        else:
            for need in needs:
                if isinstance(need, Gate):
                    recipes[need] = _gate(flat, need)
            if VALUE in needs and bits:
                recipes[VALUE] = Recipe(unpack_blocks, (*pack_blocks(flat, bits), bits, self.count, self.dtype), {}, None)
            if SHAPE in needs:
                recipes[SHAPE] = next(iter(recipes.values())) if recipes else _shape(flat)
        for need, consumers in self.needs.items():
            recipes[need].consumers += consumers
        self._recipes, self.held = recipes, None

    def take(self, need: Need, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
        """For one consumer: the tensor, or one that serves its need."""
        if self.held is not None:
            return self.held.as_strided(size, stride, offset)
        recipe = self._recipes[need]
        value = View(recipe, tuple(size), tuple(stride), offset, self.dtype).value()
        recipe.consumed()
        return value

    def _exactly(self, flat: torch.Tensor) -> Recipe | None:
        """Masks as bits, indices in the narrowest type; None where that is not known to hold every value."""
        if self.dtype is torch.bool:
            return Recipe(unpack_bits, (pack_bits(flat, _itself), self.count, self.dtype), {}, None)
        if self._born.scalings is not None:
            return Recipe(_scaled, (pack_bits(flat, _not_zero), self.count, self.dtype, self._born.scalings), {}, None)
        dtype = narrowest(*self._range) if self._range and not self.dtype.is_floating_point else None
        if dtype is None or dtype.itemsize >= self.dtype.itemsize:
            return None
        return Recipe(torch.ops.aten._to_copy.default, (flat.to(dtype),), {"dtype": self.dtype}, None)

    def _may_lose(self) -> bool:
        return self.dtype.is_floating_point and self.count >= LEAST_NUMBERS and not self._born.auxiliary


@dataclass
class Handle:
    """What autograd holds in place of a tensor: a view of a saved storage, and what its consumer needs of it."""

    saved: Saved
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    need: Need | None = field(default=None)

    def settle(self, need: Need) -> None:
        self.need = need
        self.saved.needs[need] += 1

    def unpack(self) -> torch.Tensor:
        with torch.no_grad():
            return self.saved.take(self.need or KEPT, self.size, self.stride, self.offset)


def _gate(flat: torch.Tensor, gate: Gate) -> Recipe:
    return Recipe(unpack_bits, (pack_bits(flat, gate.test), flat.numel(), flat.dtype, *gate.stand_ins), {}, None)


def _shape(flat: torch.Tensor) -> Recipe:
    return Recipe(torch.ops.aten.new_empty.default, (flat.new_empty(0), (flat.numel(),)), {}, None)


def _scaled(bits: torch.Tensor, count: int, dtype: torch.dtype, scalings: Sequence[Scaling]) -> torch.Tensor:
    """The drawn zeros and ones, and what was done to them since, done again."""
    drawn = unpack_bits(bits, count, dtype)
    for func, others in scalings:
        func(drawn, *others)
    return drawn


def _itself(mask: torch.Tensor) -> torch.Tensor:
    return mask


def _not_zero(x: torch.Tensor) -> torch.Tensor:
    return x != 0


@cache
def _held_once() -> int:
    """The use count of a storage under a single tensor, in this version of torch."""
    with unset_fake_temporarily():
        alone = torch.empty(1)
        return torch._C._storage_Use_Count(alone.untyped_storage()._cdata)
