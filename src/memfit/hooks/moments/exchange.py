"""A job's optimizer becomes one with smaller states, and goes back: the same object, groups, hooks and schedulers."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Adam, AdamW

from memfit.core.strategy import Undo
from memfit.hooks.moments.optimizers import LEAST_ELEMENTS, is_large

_OTHER = {"amsgrad": "keeps a third moment (amsgrad)", "capturable": "is captured in a graph (capturable)",
          "differentiable": "is part of a graph (differentiable)"}


class Smaller(Protocol):
    """What an optimizer becomes: it turns the states of its parameters into its own, and back."""

    def code_all(self) -> None: ...

    def decode_all(self) -> None: ...


def why_not(optimizer: torch.optim.Optimizer) -> str | None:
    """One line if the optimizer is not Adam or AdamW as torch has them, or has nothing to make smaller; else None."""
    kind = type(optimizer)
    if kind not in (Adam, AdamW):
        return f"the optimizer is {kind.__name__}, not torch's Adam or AdamW"
    for group in optimizer.param_groups:
        stands = next((text for name, text in _OTHER.items() if group.get(name)), None)
        if stands:
            return f"{kind.__name__} {stands}"
        if any(isinstance(beta, torch.Tensor) for beta in group["betas"]):
            return f"{kind.__name__} has tensors for betas"
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not any(is_large(parameter) for parameter in held):
        return f"every tensor that the optimizer steps has fewer than {LEAST_ELEMENTS} elements"
    return None


def kept_float32(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """The tensors whose moments stay as they are under every strategy that codes them, by name, with their elements."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return {name: parameter.numel() for name, parameter in model.named_parameters()
            if id(parameter) in held and not is_large(parameter)}


def exchange(optimizer: Any, kinds: tuple[type, type], undo: Undo) -> None:
    """Make it the first of `kinds` if it is an Adam, the second if an AdamW; its states follow, there and back."""
    before = type(optimizer)
    scaled = optimizer.__dict__.get("_step_supports_amp_scaling")
    optimizer.__class__ = kinds[before is AdamW]
    undo.push(partial(_back, optimizer, before, scaled))
    if scaled:  # a fused step unscales gradients itself; this one lets the scaler do it
        optimizer._step_supports_amp_scaling = False
    with torch.no_grad():
        optimizer.code_all()


def _back(optimizer: Any, kind: type, scaled: bool | None) -> None:
    with torch.no_grad():
        optimizer.decode_all()
    if scaled:
        optimizer._step_supports_amp_scaling = scaled
    for name in [name for name in vars(optimizer) if name.startswith("_memfit_")]:
        del optimizer.__dict__[name]
    optimizer.__class__ = kind
