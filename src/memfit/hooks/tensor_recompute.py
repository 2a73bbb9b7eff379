"""A forward in which chosen operators' results are kept as recipes, and made again in backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.hooks.recipes import Packed, RecipeBook, view_of

_DRAWS_BITS = frozenset({"bernoulli_"})  # zeros and ones
_UPDATES_BUFFERS = frozenset({"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"})


class Cooking(TorchDispatchMode):
    """Sees the operators of one forward and writes the recipes of the chosen ones."""

    def __init__(self, chosen: Mapping[str, frozenset[int]], book: RecipeBook) -> None:
        super().__init__()
        self._chosen, self._book = chosen, book
        self._seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._overloadpacket.__name__
        counted = counted_as(name)
        numbers = self._chosen.get(counted)
        mutable = func._schema.is_mutable
        chosen = False
        if numbers is not None:
            chosen = self._seen[counted] in numbers
            self._seen[counted] += 1
        if mutable and name not in _UPDATES_BUFFERS:
            self._written(func, name, args, kwargs, chosen)
            drawn = func(*args, **kwargs)
            if chosen and name in _DRAWS_BITS and _whole(args[0]):
                self._book.keep_mask(args[0])
            return drawn
        out = func(*args, **kwargs)
        if chosen:
            self._book.remember(func, args, kwargs, out)
        return out

    def _written(self, func: Any, name: str, args: Any, kwargs: Any, chosen: bool) -> None:
        functional = out_of_place(func) if chosen else None
        target = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if target is None:
            return
        self._book.written(target)
        if functional is not None and self._book.find(target) is not None and _whole(target):
            self._book.rewrite(functional, args, kwargs)
        else:
            self._book.forget(target)


def counted_as(name: str) -> str:
    """The name under which an operator's calls are numbered: in-place and functional ones together, as some functions
    of torch (attention adding its mask) work in place only where no dispatch mode is active."""
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def out_of_place(func: Any) -> Any:
    """The functional form of an in-place operator (`relu_` gives `relu`), or None."""
    name = func._overloadpacket.__name__
    if not name.endswith("_") or name.startswith("_"):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    return getattr(packet, func._overloadname, None) if packet is not None else None


def _whole(tensor: torch.Tensor) -> bool:
    covered = tensor.numel() * tensor.element_size()
    return bool(tensor.storage_offset() == 0 and covered == tensor.untyped_storage().nbytes())


@contextmanager
def recomputing(chosen: Mapping[str, frozenset[int]]) -> Iterator[None]:
    """One forward in which the chosen operators' saved outputs are packed as recipes."""
    book = RecipeBook()

    def pack(tensor: torch.Tensor) -> Any:
        recipe = book.find(tensor)
        if recipe is None:
            return tensor
        recipe.consumers += 1
        return Packed(view_of(tensor, recipe))

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, _unpack), Cooking(chosen, book):
            yield
    finally:
        book.close()  # torch keeps the mode for a while; recipes must die with the graph, not with the mode


def _unpack(packed: Any) -> torch.Tensor:
    return packed.unpack() if isinstance(packed, Packed) else packed


def parse_tensors(tensors: Sequence[str]) -> dict[str, frozenset[int]]:
    """`["relu:0-3,7"]` as operator names with the numbers of their calls in one forward; `relu_` means `relu`. Raises
    ValueError."""
    found: dict[str, frozenset[int]] = {}
    for text in tensors:
        name, _, numbers = text.partition(":")
        counted = counted_as(name)
        found[counted] = found.get(counted, frozenset()) | frozenset(_numbers(numbers))
    return found


def write_tensors(chosen: Mapping[str, frozenset[int]]) -> list[str]:
    """The reverse of `parse_tensors`, in a fixed order."""
    return [f"{name}:{_ranges(sorted(numbers))}" for name, numbers in sorted(chosen.items()) if numbers]


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _ranges(numbers: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
