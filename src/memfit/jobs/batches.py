"""Batches as trees of tensors: walking, mapping, and splitting along the samples."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from memfit.core.errors import UsageError


def tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Every tensor of a batch: dicts, lists, tuples, dataclasses and encodings, nested."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for inner in batch.values():
            yield from tensors(inner)
    elif isinstance(batch, (list, tuple)):
        for inner in batch:
            yield from tensors(inner)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from tensors(getattr(batch, field.name))
    elif isinstance(encoded := getattr(batch, "data", None), Mapping):  # transformers' BatchEncoding is a UserDict
        yield from tensors(encoded)


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same tree with every tensor replaced by `change(tensor)`; other leaves are kept."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, dict) and type(batch) is dict:
        return {key: map_tensors(inner, change) for key, inner in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(inner, change) for inner in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map_tensors(inner, change) for inner in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _with_attributes(batch, {f.name: map_tensors(getattr(batch, f.name), change)
                                        for f in dataclasses.fields(batch)})
    if isinstance(encoded := getattr(batch, "data", None), Mapping):
        return _with_attributes(batch, {"data": map_tensors(dict(encoded), change)})
    if isinstance(batch, Mapping):
        copied: Any = copy.copy(batch)
        for key, inner in batch.items():
            copied[key] = map_tensors(inner, change)
        return copied
    return batch


def size(batch: Any) -> int:
    """Number of samples: the commonest first dimension among the batch's tensors (the largest on a tie).

    Raises UsageError if the batch has no tensor with a dimension.
    """
    counts = Counter(tensor.shape[0] for tensor in tensors(batch) if tensor.dim() > 0)
    if not counts:
        raise UsageError("the batch holds no tensor with a batch dimension",
                         "give tensors whose first dimension counts samples")
    return max(counts, key=lambda samples: (counts[samples], samples))


def take(batch: Any, start: int, stop: int) -> Any:
    """Samples `[start, stop)`, as views; tensors with another first dimension are shared whole."""
    samples = size(batch)
    return map_tensors(batch, lambda t: t[start:stop] if t.dim() > 0 and t.shape[0] == samples else t)


def split(batch: Any, count: int, *, first: int | None = None) -> list[Any]:
    """`count` parts of as equal size as possible, the larger ones first; fewer if there are fewer samples.

    `first`: only so many of them are made.

    Raises UsageError if a leaf counts samples but is not a tensor (a list of strings, say), as it would be shared.
    """
    if count == 1:
        return [batch]
    samples = size(batch)
    reason = why_unsplittable(batch)
    if reason:
        raise UsageError(f"the batch cannot be split into micro-batches: {reason}",
                         "turn it into tensors, or train it whole")
    parts = min(count, samples)
    base, larger = divmod(samples, parts)
    bounds, start = [], 0
    for part in range(parts if first is None else min(first, parts)):
        stop = start + base + (1 if part < larger else 0)
        bounds.append((start, stop))
        start = stop
    return [take(batch, *bound) for bound in bounds]


def why_unsplittable(batch: Any) -> str | None:
    """One line if the batch cannot be split along its samples, else None."""
    try:
        samples = size(batch)
    except UsageError as error:
        return error.message
    if samples < 2:
        return "it has one sample"
    for path, leaf in _other_leaves(batch, ""):
        if isinstance(leaf, (list, tuple)) and len(leaf) == samples:
            kinds = f"a {type(leaf).__name__} of {samples} {type(leaf[0]).__name__} values"
            return f"{path or 'it'} is {kinds}, not a tensor"
    return None


def _other_leaves(batch: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(batch, torch.Tensor):
        return
    if isinstance(batch, Mapping):
        for key, inner in batch.items():
            yield from _other_leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(batch, (list, tuple)):
        if batch and not any(True for _ in tensors(batch)):
            yield path, batch
        for position, inner in enumerate(batch):
            if not isinstance(inner, (str, int, float)):
                yield from _other_leaves(inner, f"{path}[{position}]")


def _with_attributes(original: Any, values: dict[str, Any]) -> Any:
    copied = copy.copy(original)
    for name, value in values.items():
        object.__setattr__(copied, name, value)
    return copied
