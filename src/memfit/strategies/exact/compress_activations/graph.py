"""What is known of operators and of the nodes of the graph that they leave, whatever their values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """The strided tensors of arguments, lists and tuples looked into."""
    for value in tree:
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided:
                yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def kind_of(node: Any) -> str:
    """`ReluBackward0` as `relubackward`."""
    return type(node).__name__.rstrip("0123456789").lower()


@lru_cache(maxsize=1024)
def saves_results(node: type, func: Any) -> bool:
    """Whether a kind of node may hold its operator's first result: something that is no argument, and no other result."""
    others = {argument.name for argument in func._schema.arguments}
    for index, result in enumerate(func._schema.returns):
        if index:
            others |= {f"result{index}", result.name}
    saved = {name.removeprefix("_raw_saved_") for name in dir(node) if name.startswith("_raw_saved_")}
    return not saved <= others


@lru_cache(maxsize=4096)
def views(func: Any) -> bool:
    """Whether an operator's result shares its argument's storage."""
    return any(one.alias_info is not None for one in func._schema.returns)
