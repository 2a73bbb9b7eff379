"""Image classification: vision transformers and ResNets of transformers, convolutional networks of torchvision.

All take: `batch` samples of `image` x `image` pixels, the `classes` of the head, `optimizer` by name with `lr`,
`seed` of weights and order, and `data`, a folder with one sub-folder for each class (default: handwritten digits).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torchvision import models
from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

from memfit.core.errors import UsageError
from memfit.jobs.job import Job
from memfit.jobs.weights import sample_count
from memfit.recipes import making
from memfit.recipes.images import pictures
from memfit.recipes.sampling import Batch, Evaluation, Sampler, accuracy


def vit_mini(
    batch: int = 512, image: int = 32, classes: int = 10, dropout: float = 0.0, optimizer: str = "adamw",
    lr: float = 2e-3, seed: int = 0, data: str | None = None,
) -> Job:
    """A vision transformer that learns the digits in 60 steps: hidden 64, 4 layers, patches of 4 pixels."""
    config = _vit_config(image, classes, dropout, patch=4, hidden=64, layers=4, heads=4)
    config.initializer_range = 0.1  # 1 / sqrt(hidden); with the usual 0.02 so narrow a model hardly moves in 60 steps
    return _job(partial(ViTForImageClassification, config), batch, image, classes, optimizer, lr, seed, data)


def vit_s16(
    batch: int = 16, image: int = 224, classes: int = 1000, dropout: float = 0.0, optimizer: str = "adamw",
    lr: float = 3e-4, seed: int = 0, data: str | None = None,
) -> Job:
    """ViT-S/16: hidden 384, 12 layers, 6 heads, patches of 16 pixels."""
    config = _vit_config(image, classes, dropout, patch=16, hidden=384, layers=12, heads=6)
    return _job(partial(ViTForImageClassification, config), batch, image, classes, optimizer, lr, seed, data)


def vit_base(
    batch: int = 8, image: int = 224, classes: int = 1000, dropout: float = 0.0, optimizer: str = "adamw",
    lr: float = 1e-4, seed: int = 0, data: str | None = None,
) -> Job:
    """ViT-B/16: hidden 768, 12 layers, 12 heads, patches of 16 pixels."""
    config = _vit_config(image, classes, dropout, patch=16, hidden=768, layers=12, heads=12)
    return _job(partial(ViTForImageClassification, config), batch, image, classes, optimizer, lr, seed, data)


def resnet18(
    batch: int = 16, image: int = 224, classes: int = 10, optimizer: str = "adamw",
    lr: float = 1e-3, seed: int = 0, data: str | None = None,
) -> Job:
    """torchvision's ResNet-18."""
    return _job(partial(models.resnet18, num_classes=classes), batch, image, classes, optimizer, lr, seed, data)


def resnet50(
    batch: int = 16, image: int = 224, classes: int = 1000, optimizer: str = "adamw",
    lr: float = 1e-3, seed: int = 0, data: str | None = None,
) -> Job:
    """transformers' ResNet-50."""
    making.whole(classes=classes)
    config = ResNetConfig()
    config.num_labels = classes
    return _job(partial(ResNetForImageClassification, config), batch, image, classes, optimizer, lr, seed, data)


def mobilenet_v3(
    batch: int = 16, image: int = 224, classes: int = 10, dropout: float = 0.2, optimizer: str = "adamw",
    lr: float = 1e-3, seed: int = 0, data: str | None = None,
) -> Job:
    """torchvision's MobileNet-V3 large."""
    making.fraction(dropout=dropout)
    build = partial(models.mobilenet_v3_large, num_classes=classes, dropout=dropout)
    return _job(build, batch, image, classes, optimizer, lr, seed, data)


def efficientnet_b0(
    batch: int = 16, image: int = 224, classes: int = 10, dropout: float = 0.2, optimizer: str = "adamw",
    lr: float = 1e-3, seed: int = 0, data: str | None = None,
) -> Job:
    """torchvision's EfficientNet-B0; `dropout` is the rate of its stochastic depth as well, as both are 0.2 in it."""
    making.fraction(dropout=dropout)
    build = partial(models.efficientnet_b0, num_classes=classes, dropout=dropout, stochastic_depth_prob=dropout)
    return _job(build, batch, image, classes, optimizer, lr, seed, data)


def _vit_config(
    image: int, classes: int, dropout: float, *, patch: int, hidden: int, layers: int, heads: int
) -> ViTConfig:
    making.whole(image=image, classes=classes)
    making.fraction(dropout=dropout)
    if image % patch:
        raise UsageError(f"image is {image}, no multiple of the patches' {patch} pixels", f"give a multiple of {patch}")
    config = ViTConfig(
        image_size=image, patch_size=patch, hidden_size=hidden, intermediate_size=4 * hidden,
        num_hidden_layers=layers, num_attention_heads=heads,
        hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    config.num_labels = classes
    return config


def _job(
    build: Callable[[], nn.Module], batch: int, image: int, classes: int, optimizer: str, lr: float, seed: int,
    data: str | None,
) -> Job:
    making.whole(batch=batch, image=image, classes=classes)
    sampler = Sampler(pictures(data, image, classes), batch, seed)
    most = 360 if image <= 64 else 96  # all held-out digits where that takes seconds
    return Job(
        making.seeded(seed, build), loss, sampler.first(), making.optimizer(optimizer, lr),
        data=sampler, evaluate=Evaluation(sampler, measure, most), weight=sample_count)


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean cross entropy of the labels."""
    return functional.cross_entropy(_logits(model, batch), batch["labels"])


def measure(model: nn.Module, batch: Batch) -> tuple[float, Mapping[str, Any]]:
    """Accuracy and loss of one batch."""
    return accuracy(_logits(model, batch), batch["labels"])


def _logits(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Logits [n, classes]: transformers' models give an output object, torchvision's a tensor."""
    output = model(batch["pixel_values"])
    return output if isinstance(output, torch.Tensor) else output.logits
