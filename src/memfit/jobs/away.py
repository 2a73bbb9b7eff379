"""Memory that is not the device's: beside it on the host, or in a mapped file on disk.

Who makes a tensor there says so here; who counts a device's bytes (the trace, the measurement) asks here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

HOST, DISK = "host", "disk"

_ATTRIBUTE = "_memfit_away"
_born: ContextVar[str] = ContextVar("memfit_born_away", default="")


def place_of(storage: Any) -> str:
    """Where a storage is: `host`, `disk`, or empty for the device."""
    return getattr(storage, _ATTRIBUTE, "")


def is_away(tensor: torch.Tensor) -> bool:
    """Whether a plain tensor's bytes are not the device's."""
    return tensor.layout == torch.strided and bool(place_of(tensor.untyped_storage()))


def mark(storage: Any, place: str) -> None:
    """From now on the storage counts as being in `place`."""
    setattr(storage, _ATTRIBUTE, place)


@contextmanager
def born(place: str) -> Iterator[None]:
    """Fake storages that are made inside, in this thread, are in `place` from the beginning."""
    token = _born.set(place)
    try:
        yield
    finally:
        _born.reset(token)


def birthplace() -> str:
    """The place of storages that are made now; empty for the device."""
    return _born.get()


def on_card(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on a card, or is a fake that stands for one that is: those are CPU tensors of a mode that has a
    target."""
    return tensor.is_cuda or getattr(getattr(tensor, "fake_mode", None), "target", None) is not None
