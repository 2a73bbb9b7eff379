"""GPUMemNet: convolutional nets over an epoch of ImageNet and drawn multilayer perceptrons; Adam; nvidia-smi's figure.

Both loops hold inputs, outputs and loss until the next step has its own; the perceptrons end in a softmax before the cross
entropy. The order of layers inside a perceptron is inferred (the count of parameters fits).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

import memfit
from cuda_rows.common import Case, Remembering

CARD, VERSION = "a100-40gb", "2.x"
NETS = {  # row: (model, batch, side)
    "P267": ("vgg16", 32, 224), "P270": ("resnet50", 32, 224), "P272": ("resnet50", 128, 224),
    "P274": ("xception", 64, 224), "P275": ("xception", 128, 224), "P276": ("mobilenet_v2", 32, 224),
    "P277": ("mobilenet_v2", 64, 224), "P278": ("mobilenet_v2", 128, 224), "P279": ("efficientnet_b0", 32, 224),
    "P283": ("inception_v3", 64, 299),
}


@dataclass(frozen=True)
class Shape:
    """A perceptron; `narrowing` takes the same number of features off at every layer."""

    batch: int
    features: int
    classes: int
    depth: int
    activation: str
    narrowing: bool
    dropout: float
    batchnorm: bool
    parameters: int


PERCEPTRONS = {
    "P285": Shape(831, 4058, 872, 1, "GELU", False, 0.0, False, 20010870),
    "P286": Shape(981, 2481, 484, 9, "ReLU", True, 0.18, False, 22958704),
    "P288": Shape(368, 3443, 607, 6, "SELU", True, 0.20, True, 28620640),
    "P289": Shape(558, 3988, 21, 2, "ReLU", False, 0.0, True, 31915985),
    "P291": Shape(578, 4084, 283, 7, "SELU", True, 0.29, False, 41207248),
    "P293": Shape(900, 3931, 437, 9, "LeakyReLU", True, 0.0, True, 51907978),
    "P294": Shape(1015, 2946, 357, 7, "Identity", False, 0.0, False, 61825113),
}


def perceptron(shape: Shape) -> nn.Module:
    layers: list[nn.Module] = []
    width, step = shape.features, (shape.features - shape.classes) // shape.depth if shape.narrowing else 0
    for _ in range(shape.depth):
        out = max(width - step, shape.classes)
        layers.append(nn.Linear(width, out))
        layers += [nn.BatchNorm1d(out)] if shape.batchnorm else []
        layers.append(getattr(nn, shape.activation)())
        layers += [nn.Dropout(shape.dropout)] if shape.dropout else []
        width = out
    model = nn.Sequential(*layers, nn.Linear(width, shape.classes), nn.Softmax(dim=1))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == shape.parameters, f"{count} parameters instead of {shape.parameters}"
    return model


def net(name: str) -> nn.Module:
    import torchvision

    if name == "xception":
        import timm

        return timm.create_model("legacy_xception", pretrained=False, num_classes=1000)
    options = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    return getattr(torchvision.models, name)(weights=None, **options)


def job(make: Callable[[], nn.Module], inputs: torch.Tensor) -> memfit.Job:
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    return memfit.Job(lambda: Remembering(make()), lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
                      (inputs, labels), lambda parameters: torch.optim.Adam(parameters),
                      zero_grad="before_forward")


def cases() -> list[Case]:
    found = [Case(row, CARD, lambda n=name, b=batch, s=side: job(lambda: net(n), torch.empty(b, 3, s, s)), "process",
                  torch=VERSION, convolutions=True) for row, (name, batch, side) in NETS.items()]
    found += [Case(row, CARD, lambda s=shape: job(lambda: perceptron(s), torch.empty(s.batch, s.features)),
                   "process", torch=VERSION) for row, shape in PERCEPTRONS.items()]
    return found
