"""Whether an optimizer treats parameters apart, so that stepping them one by one gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import nn

from memfit.hooks.apart.one import plain_step, step_one

_KNOWN = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop",
          "Adafactor", "SparseAdam", "Muon")
_KNOWN_PACKAGES = ("torchao", "bitsandbytes", "memfit")  # low-bit states, parameter by parameter
_COUPLED = ("LBFGS",)


def why_coupled(optimizer: torch.optim.Optimizer) -> str | None:
    """One line if stepping parameters one by one is not the same, or cannot be shown to be; else None."""
    kind = type(optimizer)
    package = kind.__module__.partition(".")[0]
    if package in _KNOWN_PACKAGES or (package == "torch" and kind.__name__ in _KNOWN):
        return None
    if kind.__name__ in _COUPLED:
        return f"{kind.__name__} steps all parameters as one vector"
    return None if _tried_apart(kind, _hashable(optimizer)) else (
        f"{kind.__name__} was tried on three small tensors: stepping them one by one is not the same as together")


def _hashable(optimizer: torch.optim.Optimizer) -> tuple[tuple[str, object], ...]:
    return tuple((name, value) for name, value in optimizer.defaults.items()
                 if isinstance(value, (int, float, str, bool, tuple, type(None))))


@lru_cache(maxsize=32)
def _tried_apart(kind: type[torch.optim.Optimizer], defaults: tuple[tuple[str, object], ...]) -> bool:
    """Two small copies of the optimizer, two steps each, one together and one apart: equal to the last bit?"""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in ((8, 4), (8,), (4, 4))]
    grads = [[torch.randn(t.shape, generator=generator) for t in start] for _ in range(2)]
    try:
        together, apart = (_small(kind, dict(defaults), start) for _ in range(2))
        for step in grads:
            _together(together, step)
            _apart(apart, step)
    except Exception:  # whatever an unknown optimizer raises: it cannot be shown to be separable
        return False
    pairs = zip(_parameters(together), _parameters(apart), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def _small(
    kind: Callable[..., torch.optim.Optimizer], defaults: dict[str, object], start: list[torch.Tensor]
) -> torch.optim.Optimizer:
    return kind([nn.Parameter(tensor.clone()) for tensor in start], **defaults)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _together(optimizer: torch.optim.Optimizer, grads: list[torch.Tensor]) -> None:
    for parameter, grad in zip(_parameters(optimizer), grads, strict=True):
        parameter.grad = grad.clone()
    plain_step(optimizer)
    optimizer.zero_grad(set_to_none=True)


def _apart(optimizer: torch.optim.Optimizer, grads: list[torch.Tensor]) -> None:
    group = optimizer.param_groups[0]
    for parameter, grad in reversed(list(zip(group["params"], grads, strict=True))):
        parameter.grad = grad.clone()
        step_one(optimizer, group, parameter)
        parameter.grad = None
    plain_step(optimizer)
