"""What a tensor is made of."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors inside a wrapper subclass (torchao's 8-bit states), or the tensor itself; sparse ones by their
    parts."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        for name in flatten()[0]:
            yield from plain_parts(getattr(tensor, name))
    elif tensor.layout == torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    else:
        yield tensor
