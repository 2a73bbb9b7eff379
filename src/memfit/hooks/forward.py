"""Another forward for one module: set on the instance, so that names, types, pickling and deep copies stay.

A wrapper module would change `state_dict` keys and `isinstance`; module hooks break pickling and `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from memfit.core.strategy import Undo


def override_forward(module: nn.Module, function: Callable[..., Any], undo: Undo, **settings: Any) -> None:
    """Make `module.forward(*args)` mean `function(module, previous, *args, **settings)`.

    `function` must be importable by name (no lambda, no closure), so that the module can be pickled and deep-copied;
    it reaches what it replaces by `call_forward(module, previous, *args)`. Overrides nest, and may be undone in any
    order.
    """
    previous = module.__dict__.get("forward")
    layer = partial(function, module, previous, **settings)
    module.__dict__["forward"] = layer
    undo.push(partial(_remove, module, layer))


def call_forward(module: nn.Module, previous: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    """The forward below an override: the instance's own earlier one, or the class's."""
    if previous is not None:
        return previous(*args, **kwargs)
    return type(module).forward(module, *args, **kwargs)


def _remove(module: nn.Module, layer: partial[Any]) -> None:
    """Take one layer out of the module's chain of overrides, wherever it stands."""
    top = module.__dict__.get("forward")
    below = layer.args[1]
    if top is layer:
        _set(module, below)
        return
    while isinstance(top, partial) and len(top.args) == 2:
        if top.args[1] is layer:
            relink: Any = top.__setstate__  # pyright: ignore[reportAttributeAccessIssue]
            relink((top.func, (module, below), top.keywords, top.__dict__))
            return
        top = top.args[1]


def _set(module: nn.Module, forward: Callable[..., Any] | None) -> None:
    if forward is None:
        del module.__dict__["forward"]
    else:
        module.__dict__["forward"] = forward
