"""Stepping one parameter with the user's own optimizer."""

from __future__ import annotations

from typing import Any

import torch


def plain_step(optimizer: torch.optim.Optimizer) -> None:
    """The class's step below its hooks and below what schedulers count: those see the window's one step."""
    step: Any = type(optimizer).step
    step = step.__wrapped__ if getattr(step, "hooked", False) else step
    step(optimizer)


def step_one(optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.Tensor) -> None:
    """Step `parameter` of `group` and nothing else. State stays under its keys; groups are as before afterwards."""
    held = [(one, one["params"]) for one in optimizer.param_groups]
    for one, _ in held:
        one["params"] = [parameter] if one is group else []
    try:
        plain_step(optimizer)
    finally:
        for one, parameters in held:
            one["params"] = parameters
