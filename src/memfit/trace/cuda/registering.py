"""Kernels of our own in PyTorch's dispatcher for as long as a trace runs, and the real ones again afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

AUTOGRAD, AUTOCAST = "AutogradCPU", "AutocastCPU"
_Key = torch._C.DispatchKey
_AUTOCAST_KEYS = torch._C.DispatchKeySet(_Key.AutocastCPU)


class Overrides:
    """Kernels for `aten` operators; `close` takes all of them back."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        self._kept: list[Any] = []

    def add(self, name: str, kernel: Callable[..., Any], key: str = AUTOGRAD) -> None:
        """`kernel` runs for `aten::name` at this key, for real tensors, too: it must leave those as they are."""
        with warnings.catch_warnings():  # torch warns once of kernels that are overridden: that is on purpose here
            warnings.filterwarnings("ignore", message=r"(?s).*[Oo]verrid")
            self._library.impl(name, kernel, key)
        self._kept.append(kernel)

    def add_on_fakes(self, name: str, overload: Any, kernel: Callable[..., Any]) -> None:
        """The same for a composite operator: tensors that are not fake go the operator's own way."""
        def either(*args: Any, **kwargs: Any) -> Any:
            return kernel(*args, **kwargs) if type(args[0]) is FakeTensor else composite(overload, *args, **kwargs)

        self.add(name, either)

    def close(self) -> None:
        self._library._destroy()


@contextmanager
def overriding() -> Iterator[Overrides]:
    """Overrides that are gone when left."""
    overrides = Overrides()
    try:
        yield overrides
    finally:
        overrides.close()


def composite(overload: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator as the sum of others, by its own definition."""
    return overload._op_dk(_Key.CompositeImplicitAutograd, *args, **kwargs)


def without_autocast() -> Any:
    """A context in which autocast does not act."""
    return torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_KEYS)
