"""How to make a forward value again: the operator and its inputs, kept instead of the value.

One recipe a storage, so that views share it. Method: one decision for each tensor that autograd saves; see
https://pytorch.org/docs/stable/autograd.html#hooks-for-saved-tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

_SMALL_SHARE = 8
_BATCH_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")


@dataclass(frozen=True)
class View:
    """A tensor as a view of a recipe's storage."""

    recipe: Recipe
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def value(self) -> torch.Tensor:
        return self.recipe.value().view(self.dtype).as_strided(self.size, self.stride, self.offset)


@dataclass
class Kept:
    """An input that stays alive. `stale`: somebody wrote to it in place after its use, so it is not that input any more."""

    tensor: torch.Tensor
    stale: bool = False

    def value(self) -> torch.Tensor:
        if self.stale:
            raise RuntimeError(
                f"a tensor of shape {list(self.tensor.shape)} that recomputation needs was changed in place after its "
                "use; leave it out of the plan's recompute tensors")
        return self.tensor


@dataclass
class Recipe:
    """`func(*args, **kwargs)[index]`, made again when first needed and kept until its last consumer has had it."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    index: int | None
    consumers: int = 0
    made: torch.Tensor | None = field(default=None, repr=False)

    def value(self) -> torch.Tensor:
        """The value over its whole storage, made now if it is not there."""
        if self.made is not None:
            return self.made
        out = self.func(*_filled(self.args), **{key: _fill(inner) for key, inner in self.kwargs.items()})
        result = out if self.index is None else out[self.index]
        if self.consumers > 0:
            self.made = result
        return result

    def consumed(self) -> None:
        """One consumer has had the value; after the last one it is let go."""
        self.consumers -= 1
        if self.consumers <= 0:
            self.made = None


@dataclass(frozen=True)
class Packed:
    """What autograd holds instead of a saved tensor."""

    view: View

    def unpack(self) -> torch.Tensor:
        with torch.no_grad():
            value = self.view.value()
        self.view.recipe.consumed()
        return value


class RecipeBook:
    """The recipes of one forward, by storage; a storage that died or was written to has none."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], Recipe]] = {}
        self._kept: dict[int, list[Kept]] = {}

    def find(self, tensor: torch.Tensor) -> Recipe | None:
        storage = tensor.untyped_storage()
        entry = self._entries.get(storage._cdata)
        if entry is None:
            return None
        if entry[0]() is None:  # the address was reused by another storage
            del self._entries[storage._cdata]
            return None
        return entry[1]

    def close(self) -> None:
        """The forward is over: from now on only what autograd packed keeps recipes alive."""
        self._entries.clear()
        self._kept.clear()

    def forget(self, tensor: torch.Tensor) -> None:
        self._entries.pop(tensor.untyped_storage()._cdata, None)

    def written(self, tensor: torch.Tensor) -> None:
        """Recipes that need what was in the tensor cannot be made any more."""
        for kept in self._kept.get(tensor.untyped_storage()._cdata, ()):
            kept.stale = True

    def remember(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """A recipe for every output of a fresh operator call."""
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        if func._overloadpacket.__name__ in _BATCH_NORMS:
            func, args, kwargs = batch_norm_again(func, args, kwargs, out)
        packed = tuple(self._pack(arg) for arg in args)
        named = {key: self._pack(inner) for key, inner in kwargs.items()}
        large = max((t.numel() for t in outputs if isinstance(t, torch.Tensor)), default=0) // _SMALL_SHARE
        for index, tensor in enumerate(outputs):
            if func is normalised and index:  # its statistics are kept
                break
            if isinstance(tensor, torch.Tensor) and tensor.numel() > large:  # means and the like are not worth a call
                recipe = Recipe(func, packed, named, index if isinstance(out, (tuple, list)) else None)
                self._enter(tensor, recipe)

    def keep_mask(self, drawn: torch.Tensor) -> None:
        """Zeros and ones that were just drawn: kept as bytes, a quarter of the size, from which the same values are made."""
        mask = Kept(drawn.detach().to(torch.bool))
        self._enter(drawn, Recipe(torch.ops.aten._to_copy.default, (mask,), {"dtype": drawn.dtype}, None))

    def rewrite(self, functional: Any, args: Any, kwargs: Any) -> None:
        """An in-place operator becomes its out-of-place form on the old value's recipe."""
        target = args[0]
        packed = tuple(self._pack(arg) for arg in args)
        named = {key: self._pack(inner) for key, inner in kwargs.items()}
        self._enter(target, Recipe(functional, packed, named, None))

    def _enter(self, tensor: torch.Tensor, recipe: Recipe) -> None:
        storage = tensor.untyped_storage()
        self._entries[storage._cdata] = (weakref.ref(storage), recipe)

    def _pack(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            recipe = self.find(value)
            if recipe is not None:
                return view_of(value, recipe)
            kept = Kept(value.detach())
            self._kept.setdefault(value.untyped_storage()._cdata, []).append(kept)
            return kept
        if isinstance(value, (list, tuple)):
            return type(value)(self._pack(inner) for inner in value)
        return value


def view_of(tensor: torch.Tensor, recipe: Recipe) -> View:
    """The tensor as a view of a recipe's storage."""
    return View(recipe, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype)


def batch_norm_again(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[Any, Any, Any]:
    """Batch normalisation made again: buffers are left alone.

    In training on a CPU only the last of its passes is run, with the statistics of the first run, which autograd keeps
    anyway: the kernel multiplies by `weight * inverse deviation` and adds the rest, and does so in evaluation mode, too.
    """
    x, weight, bias = args[:3]
    if not _in_training(func, args, kwargs):
        return func, args, kwargs
    mean, inverse = out[1].detach(), out[2].detach()
    if x.device.type != "cpu" or mean.dtype != x.dtype or mean.numel() == 0:
        return torch.ops.aten.native_batch_norm.default, (x, weight, bias, None, None, True, *args[-2:]), {}
    return normalised, (x, weight, bias, mean, inverse), {}


def normalised(x: Any, weight: Any, bias: Any, mean: Any, inverse: Any) -> tuple[Any]:
    """Batch normalisation with known statistics, as the training kernel's last pass does it."""
    scale = inverse if weight is None else inverse * weight
    again = torch.ops.aten._native_batch_norm_legit_no_training.default
    return (again(x, scale, bias, mean, torch.ones_like(mean), 0.0, 0.0)[0],)


def _in_training(func: Any, args: Any, kwargs: Any) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    if "training" not in names:
        return True
    place = names.index("training")
    return bool(args[place] if place < len(args) else kwargs["training"])


def _fill(value: Any) -> Any:
    if isinstance(value, (View, Kept)):
        return value.value()
    if isinstance(value, (list, tuple)):
        return type(value)(_fill(inner) for inner in value)
    return value


def _filled(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_fill(value) for value in values)
