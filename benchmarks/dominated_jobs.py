"""Jobs whose memory is mostly one thing: what a plan has to find an answer to."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import memfit


def _ids(vocabulary: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(0))


def _features(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


class Mlp(nn.Module):
    """Residual blocks of two linear layers, with dropout."""

    def __init__(self, width: int, depth: int, dropout: float = 0.0, inner: int = 1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inner * width), nn.GELU(), nn.Dropout(dropout),
                          nn.Linear(inner * width, width), nn.Dropout(dropout)) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Attention(nn.Module):
    """Attention by hand: scores as a tensor of their own, with dropout on the weights."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.qkv, self.out, self.dropout = heads, nn.Linear(width, 3 * width), nn.Linear(width, width), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        weights = F.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, -1)
        return self.out((F.dropout(weights, self.dropout, self.training) @ v).transpose(1, 2).flatten(2))


class Words(nn.Module):
    """Embedding, blocks of attention, and a linear layer over the vocabulary."""

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int = 4, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.blocks = nn.ModuleList(Attention(width, heads, dropout) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return self.head(x)


def classify(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy of a classifier, or of words."""
    given = model(batch["x"])
    return F.cross_entropy(given.flatten(0, -2), batch["labels"].flatten())


def _job(make: object, batch: dict[str, torch.Tensor]) -> memfit.Job:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return make()  # type: ignore[operator]

    return memfit.Job(model, classify, batch, lambda parameters: torch.optim.AdamW(parameters, lr=1e-4))


def states(width: int = 4096, depth: int = 4) -> memfit.Job:
    """Parameters, gradients and states: wide layers and a single sample."""
    return _job(lambda: Mlp(width, depth), {"x": _features(1, width), "labels": _ids(10, 1)})


def logits(vocabulary: int = 50_257, rows: int = 8) -> memfit.Job:
    """Logits over a large vocabulary."""
    ids = _ids(vocabulary, rows, 256)
    return _job(lambda: Words(vocabulary, 128, 1), {"x": ids, "labels": ids.roll(-1, 1)})


def attention(length: int = 2048, rows: int = 2) -> memfit.Job:
    """Attention weights of long sequences."""
    ids = _ids(1000, rows, length)
    return _job(lambda: Words(1000, 256, 2, heads=8), {"x": ids, "labels": ids.roll(-1, 1)})


def dropout(samples: int = 8192, width: int = 1024) -> memfit.Job:
    """Dropout masks and what they multiply."""
    return _job(lambda: Mlp(width, 4, dropout=0.1), {"x": _features(samples, width), "labels": _ids(10, samples)})


def activations(samples: int = 4096, width: int = 512) -> memfit.Job:
    """Saved activations of many blocks."""
    return _job(lambda: Mlp(width, 12, inner=4), {"x": _features(samples, width), "labels": _ids(10, samples)})
