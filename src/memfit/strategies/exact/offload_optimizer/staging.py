"""States that are not in a card's memory come there for the step of their parameter, and go back.

Copies run on the stream that steps, so that they are in order with the kernels and with each other: one parameter's states are
on the card at a time, and stay until the next parameter's come.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from memfit.core.strategy import Undo
from memfit.hooks.apart import step_one
from memfit.strategies.exact.offload_optimizer.states import AwayStates, ParameterState


class Staging:
    """Around an optimizer whose `state` is an `AwayStates`. Its own `step()` steps parameters one by one, too."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._here: list[ParameterState] = []
        self._gradients: list[tuple[torch.Tensor, torch.Tensor]] = []

    def install(self, undo: Undo) -> None:
        """torch's optimizers look up states in `_init_group` and nowhere else."""
        optimizer: Any = self._optimizer
        optimizer._init_group = partial(self._init_group, optimizer._init_group)
        undo.push(partial(delattr, optimizer, "_init_group"))
        undo.push(optimizer.register_step_pre_hook(self._one_by_one).remove)
        undo.push(optimizer.register_step_post_hook(self._finished).remove)
        undo.push(self._put_back)

    def _init_group(self, original: Callable[..., Any], group: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self._put_back()
        states = self._optimizer.state
        for parameter in group["params"]:
            if parameter.grad is not None and isinstance(states, AwayStates):
                state = states[parameter]
                state.bring(parameter.device)
                self._here.append(state)
        return original(group, *args, **kwargs)

    def _one_by_one(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Before `step()`: it finds no gradients any more, and tells schedulers and other hooks as ever."""
        for group in optimizer.param_groups:
            for parameter in list(group["params"]):
                if parameter.grad is not None:
                    step_one(optimizer, group, parameter)
                    self._gradients.append((parameter, parameter.grad))
                    parameter.grad = None

    def _finished(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._put_back()
        if torch.cuda.is_initialized():  # who reads the states next may be the host
            torch.cuda.current_stream().synchronize()
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        self._gradients.clear()

    def _put_back(self) -> None:
        while self._here:
            self._here.pop().take_away()
