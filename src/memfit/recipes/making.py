"""What every recipe does alike: seeded weights, an optimizer by its name, sizes checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from memfit.core.errors import UsageError

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = MappingProxyType({
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adafactor": torch.optim.Adafactor,
})


def optimizer(name: str, lr: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """A function from parameters to the optimizer of this name. Raises UsageError with the known names."""
    if name not in OPTIMIZERS:
        raise UsageError(f"there is no optimizer {name!r} in the recipes", f"known: {', '.join(OPTIMIZERS)}")
    if isinstance(lr, bool) or not isinstance(lr, (int, float)) or not 0 < lr < float("inf"):
        raise UsageError(f"lr is {lr!r}", "give a positive learning rate, such as 0.001")
    return partial(OPTIMIZERS[name], lr=lr)


def seeded(seed: int, build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A function that builds the model, training, with the same weights each time; other random draws are untouched."""
    whole(seed=seed, least=0)
    return partial(_build_seeded, seed, build)


def whole(*, least: int = 1, **sizes: Any) -> None:
    """Raise UsageError unless every size is an int of at least `least`."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < least:
            raise UsageError(f"{name} is {size!r}", f"give a whole number of at least {least}")


def fraction(**shares: Any) -> None:
    """Raise UsageError unless every share is a number from 0 up to, not including, 1."""
    for name, share in shares.items():
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
            raise UsageError(f"{name} is {share!r}", "give a number from 0 to below 1")


def _build_seeded(seed: int, build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().train()
