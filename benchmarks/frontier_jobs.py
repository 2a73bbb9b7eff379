"""The five jobs of the frontier: ResNet-50, ViT-S/16, BERT-base and GPT-2 as recipes, and a plain network of convolutions,
BatchNorm and dropout. Each is a TARGET of its own: `benchmarks/frontier_jobs.py:job --set name=J5`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

import memfit.recipes.text
import memfit.recipes.vision  # noqa: F401 - libraries are imported with the target's file, before any limit is set
from memfit.jobs import Job
from memfit.recipes import recipe

RECIPES: dict[str, tuple[str, dict[str, int]]] = {
    "J1": ("resnet50", {}), "J2": ("vit-s16", {}), "J3": ("bert-base", {}), "J4": ("gpt2", {}),
    "J2b1": ("vit-s16", {"batch": 1}), "J4b1": ("gpt2", {"batch": 1}),
}


class ConvBlock(nn.Module):
    """Residual: convolution, BatchNorm, ReLU, dropout, convolution, BatchNorm, the sum, ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.Dropout(0.1),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.net(x))


class LinearBlock(nn.Sequential):
    """Linear, BatchNorm, ReLU, dropout."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1))


class Plain(nn.Module):
    """Stem, 16 residual convolution blocks, pool, 16 linear blocks, head."""

    def __init__(self, channels: int = 32, width: int = 256, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(*(ConvBlock(channels) for _ in range(16)))
        self.pool, self.widen = nn.AdaptiveAvgPool2d(4), nn.Linear(16 * channels, width)
        self.tail = nn.Sequential(*(LinearBlock(width) for _ in range(16)))
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.blocks(self.stem(x))).flatten(1)
        return self.head(self.tail(self.widen(x)))


def job(name: str, batch: int | None = None) -> Job:
    """The job of that name, or the recipe; `batch` overrides its batch size."""
    if name == "J5":
        return plain_network(batch or 32)
    known, settings = RECIPES.get(name, (name, {}))
    made = recipe(known, **({**settings, "batch": batch} if batch else settings))
    made.evaluate = None
    return made


def plain_network(samples: int) -> Job:
    """J5: 32 x 3 x 64 x 64 pictures of noise, 10 classes."""
    generator = torch.Generator().manual_seed(0)
    batch = (torch.randn(samples, 3, 64, 64, generator=generator), torch.randint(0, 10, (samples,), generator=generator))
    return Job(_seeded(Plain), _loss, batch, partial(torch.optim.AdamW, lr=1e-3))


def _seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return build().train()

    return make


def _loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])
