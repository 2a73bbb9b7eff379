"""Random number generators of torch, Python and NumPy as one: seeding, keeping, putting back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def seed_everything(seed: int) -> None:
    """Seed torch (every device), Python, and NumPy where it is in use."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def random_state() -> dict[str, Any]:
    """The state of every generator, in types that `torch.save` writes and loads with `weights_only=True`."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(words), gauss]}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, cached = sys.modules["numpy"].random.get_state()
        state["numpy"] = [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Put back what `random_state` gave."""
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        import numpy

        kind, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))


RawState = tuple[Any, ...]


def raw_state() -> RawState:
    """The same in the generators' own types: some ten microseconds, for keeping at each step."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
    return torch.get_rng_state(), random.getstate(), cuda, numpy


def set_raw_state(state: RawState) -> None:
    """Put back what `raw_state` gave."""
    torch_state, python_state, cuda, numpy = state
    torch.set_rng_state(torch_state)
    random.setstate(python_state)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Whatever is drawn inside, the generators are as before afterwards."""
    state = raw_state()
    try:
        yield
    finally:
        set_raw_state(state)
