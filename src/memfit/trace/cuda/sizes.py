"""What a kernel takes while it runs, as the tables of scratch memory give it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Elastic(NamedTuple):
    """A library's workspace, which shrinks where memory is short: the least it needs, the usual, the most, in bytes."""

    low_bytes: int
    typical_bytes: int
    high_bytes: int


Taken = int | Sequence[int] | Elastic
"""Bytes of one buffer, of several that live to the call's end, in the order in which they are made, or of a workspace."""


def taken(value: Taken) -> tuple[int, tuple[int, ...], Elastic | None]:
    """Sum, buffers (empty: at most one, of the whole sum) and workspace."""
    if isinstance(value, Elastic):
        return value.typical_bytes, (), value
    if isinstance(value, int):
        return max(0, value), (), None
    buffers = tuple(size for size in value if size > 0)
    return sum(buffers), buffers if len(buffers) > 1 else (), None
