"""Running a model with dropout off, for comparisons of runs that draw other random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

_NAMES = ("dropout", "drop_prob", "drop_path", "layerdrop", "drop_rate", "dropout_p", "p_drop", "pdrop", "attn_drop")
_FUNCTIONS = {F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout}


@contextmanager
def dropout_off(model: nn.Module) -> Iterator[None]:
    """Dropout has probability 0 inside: in modules (also stochastic depth, recurrent layers), in numbers that modules
    and their configurations hold under such a name, and in functional calls with a fixed probability."""
    undo: list[Callable[[], None]] = []
    try:
        for module in model.modules():
            _silence(module, undo, names=("p",) if _is_dropout(module) else ())
            config = getattr(module, "config", None)
            if config is not None:
                _silence(config, undo)
        with _NoDropout():
            yield
    finally:
        for step in reversed(undo):
            step()


def has_dropout(model: nn.Module) -> bool:
    """Whether a module holds a dropout probability above 0 (a fixed one in a functional call is not seen)."""
    for module in model.modules():
        names = [name for name in vars(module) if _names_dropout(name)] + (["p"] if _is_dropout(module) else [])
        if any(_is_probability(getattr(module, name, None)) for name in names):
            return True
    return False


def _silence(holder: Any, undo: list[Callable[[], None]], names: tuple[str, ...] = ()) -> None:
    for name in [*names, *(name for name in getattr(holder, "__dict__", {}) if _names_dropout(name))]:
        value = getattr(holder, name, None)
        if _is_probability(value):
            try:
                setattr(holder, name, 0.0)
            except (AttributeError, TypeError, ValueError):  # a frozen or validated configuration
                continue
            undo.append(lambda name=name, value=value: setattr(holder, name, value))


def _is_dropout(module: nn.Module) -> bool:
    kind = type(module).__name__.lower()
    return "dropout" in kind or "droppath" in kind or "stochasticdepth" in kind


def _names_dropout(name: str) -> bool:
    return any(part in name.lower() for part in _NAMES)


def _is_probability(value: Any) -> bool:
    return isinstance(value, float) and 0.0 < value <= 1.0


class _NoDropout(TorchFunctionMode):
    """Functional dropout passes its input on, attention drops nothing; recomputation in backward sees it too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FUNCTIONS:
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs = {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)
