"""Small jobs of many kinds, each with something that a prediction can get wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from memfit.jobs import Job

Optimizer = Callable[..., torch.optim.Optimizer]


def classifying(model: Any, inputs: torch.Tensor, make: Optimizer = torch.optim.SGD) -> Job:
    """Cross entropy over ten classes; the model may be a function that makes it."""

    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(net(batch[0]).float(), batch[1])

    return Job(model, loss, (inputs, torch.arange(len(inputs)) % 10), make)


def layers(width: int = 512, depth: int = 3) -> nn.Sequential:
    blocks = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(*blocks, nn.Linear(width, 10))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **settings: Any) -> None:
        super().__init__()
        self.embed, self.recurrent = nn.Embedding(500, 96), kind(96, 128, **settings)
        self.head = nn.Linear(256 if settings.get("bidirectional") else 128, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.embed(ids))[0].mean(1))


def recurrent(kind: type[nn.RNNBase], **settings: Any) -> Job:
    return classifying(Recurrent(kind, batch_first=True, **settings), torch.randint(0, 500, (16, 24)))


class Attending(nn.Module):
    """Attention with a mask or dropout takes other kernels than without."""

    def __init__(self, dropout: float, masked: bool) -> None:
        super().__init__()
        self.mix, self.head, self.dropout, self.masked = nn.Linear(128, 384), nn.Linear(128, 10), dropout, masked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (t.unflatten(-1, (4, 32)).transpose(1, 2) for t in self.mix(x).chunk(3, -1))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() if self.masked else None
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=self.dropout)
        return self.head(out.transpose(1, 2).flatten(2).mean(1))


def attending(dropout: float = 0.0, masked: bool = False) -> Job:
    return classifying(Attending(dropout, masked), torch.randn(8, 96, 128))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256))
                                    for _ in range(3))
        self.first, self.head, self.reentrant = nn.Linear(256, 256), nn.Linear(256, 10), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def checkpointed(reentrant: bool) -> Job:
    return classifying(Checkpointed(reentrant), torch.randn(1024, 256))


def convolutional(**conversion: Any) -> Job:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 64, 1), nn.GroupNorm(8, 64), nn.SiLU(),
            nn.Conv2d(64, 64, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to(**conversion)

    return classifying(make, torch.randn(8, 3, 64, 64).to(**conversion))


def in_autocast() -> Job:
    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(net(batch[0]), batch[1])

    return Job(layers(), loss, (torch.randn(2048, 512), torch.arange(2048) % 10), torch.optim.SGD)


def in_bfloat16() -> Job:
    return classifying(lambda: layers().bfloat16(), torch.randn(512, 512, dtype=torch.bfloat16))


def stepped(make: Optimizer) -> Job:
    return classifying(layers(), torch.randn(8, 512), make)


def partly_frozen() -> Job:
    model = layers(depth=4)
    model[0].requires_grad_(False)
    model[3].requires_grad_(False)
    return classifying(model, torch.randn(1024, 512),
                       lambda p: torch.optim.AdamW([one for one in p if one.requires_grad]))


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    note: str = "not a tensor"


def selecting() -> Job:
    """Rows picked by a mask, in a batch of dataclasses in a dict, with a real tensor in the loss."""
    weights = torch.rand(10)

    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        part = batch["parts"][0]
        kept = part.y > 4
        return F.cross_entropy(net(part.x)[kept], part.y[kept], weight=weights)

    batch = {"parts": [Batch(torch.randn(1024, 512), torch.arange(1024) % 10)]}
    return Job(layers(), loss, batch, torch.optim.SGD)


def tied() -> Job:
    embed, head = nn.Embedding(2000, 128), nn.Linear(128, 2000)
    head.weight = embed.weight
    model = nn.Sequential(embed, nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), head)
    ids = torch.randint(0, 2000, (8, 48))

    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(net(batch).flatten(0, 1), batch.flatten())

    return Job(model, loss, ids, torch.optim.AdamW, clip_norm=1.0)


def squared() -> Job:
    """A loss whose result keeps storage as large as its input, gradients that meet as views, and a real tensor in it."""
    target = torch.randn(4096, 512)

    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        x = net[0](batch)
        return F.mse_loss(x.view(-1, 8).tanh().view_as(x) + x.view(-1, 16).sin().view_as(x), target[:2048])

    return Job(nn.Sequential(nn.Linear(512, 512)), loss, torch.randn(2048, 512), torch.optim.SGD)


KINDS: dict[str, Callable[[], Job]] = {
    "lstm": lambda: recurrent(nn.LSTM, num_layers=2),
    "lstm both ways": lambda: recurrent(nn.LSTM, bidirectional=True),
    "gru": lambda: recurrent(nn.GRU),
    "attention": attending,
    "attention, mask": lambda: attending(masked=True),
    "attention, dropout and mask": lambda: attending(0.1, True),
    "checkpoint, reentrant": lambda: checkpointed(True),
    "checkpoint": lambda: checkpointed(False),
    "convolutions": convolutional,
    "convolutions, channels last": lambda: convolutional(memory_format=torch.channels_last),
    "autocast": in_autocast,
    "bfloat16 model": in_bfloat16,
    "adamw, foreach": lambda: stepped(lambda p: torch.optim.AdamW(p, foreach=True)),
    "adamw, fused": lambda: stepped(lambda p: torch.optim.AdamW(p, fused=True)),
    "adafactor": lambda: stepped(torch.optim.Adafactor),
    "rmsprop": lambda: stepped(lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True)),
    "frozen": partly_frozen,
    "masks": selecting,
    "tied": tied,
    "squared loss": squared,
}
