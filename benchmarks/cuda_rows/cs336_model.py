"""The language model of Stanford CS336, written by hand, its loss and its optimizer.

Untied embedding and head, no biases, RMSNorm in fp32, rotary positions from a buffer, SwiGLU, attention written out,
cross entropy from a hand-written log-softmax, AdamW that makes new moments every step, one parameter after another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 10_000


class Projection(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * scale
        return (self.weight * x).to(dtype)


class Rotary(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(length).float(), 10000.0 ** -(torch.arange(0, width, 2) / width))
        self.register_buffer("table", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.unflatten(-1, (-1, 2)).movedim(-1, 0)  # as the course has it: backward, the pairs are copied back
        cos, sin = self.table[:, : x.size(-2), :].unbind(0)  # type: ignore[index]
        turned = cos * first - sin * second
        other = sin * first + cos * second
        return torch.cat((turned, other), dim=-1)


def softmax(x: torch.Tensor) -> torch.Tensor:
    shifted = x - torch.max(x, dim=-1, keepdim=True)[0]
    powers = torch.exp(shifted)
    return powers / torch.sum(powers, dim=-1, keepdim=True)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """A mask of every head is filled with a number, one for all is chosen by."""
    scores = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(k.shape[-1])
    if mask is not None and mask.dim() == q.dim():
        scores = scores.masked_fill(mask == False, -1e9)  # noqa: E712 - makes a mask of its own
    elif mask is not None:
        scores = torch.where(mask, scores, float("-inf"))
    weights = softmax(scores)
    return torch.einsum("...qk,...kd->...qd", weights, v)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, rotary: Rotary, wide_mask: bool) -> None:
        super().__init__()
        self.heads, self.rotary, self.wide_mask = heads, rotary, wide_mask
        self.q, self.k, self.v, self.out = (Projection(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.q(x), self.k(x), self.v(x)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        q, k = self.rotary(q), self.rotary(k)
        place = torch.arange(x.size(1))
        mask = (place[:, None] >= place[None, :])[None, ...]
        if self.wide_mask:
            mask = mask[None].expand(x.size(0), self.heads, -1, -1)
        mixed = attend(q, k, v, mask)
        mixed = mixed.transpose(1, 2).flatten(-2).contiguous()
        return self.out(mixed)


class Gated(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = Projection(width, inner), Projection(inner, width), Projection(width, inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(silu(self.w1(x)) * self.w3(x))


def silu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


class Block(nn.Module):
    def __init__(self, width: int, inner: int, heads: int, rotary: Rotary, wide_mask: bool) -> None:
        super().__init__()
        self.attention, self.ffn = Attention(width, heads, rotary, wide_mask), Gated(width, inner)
        self.ln1, self.ln2 = Norm(width), Norm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.attention(self.ln1(x))
        middle = x + mixed
        fed = self.ffn(self.ln2(middle))
        return middle + fed


class LanguageModel(nn.Module):
    """`segment`: how many blocks share one checkpoint (0: none); `wide_mask`: a mask for every text and head."""

    def __init__(self, size: tuple[int, int, int, int], length: int, segment: int = 0, wide_mask: bool = False) -> None:
        super().__init__()
        width, inner, layers, heads = size
        rotary = Rotary(length, width // heads)
        self.embedding = nn.Parameter(torch.empty(VOCABULARY, width))
        self.layers = nn.ModuleList(Block(width, inner, heads, rotary, wide_mask) for _ in range(layers))
        self.norm, self.head, self.segment = Norm(width), Projection(width, VOCABULARY), segment

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding[ids, :]
        for start in range(0, len(self.layers), self.segment or len(self.layers)):
            part = self.layers[start : start + (self.segment or len(self.layers))]
            x = checkpoint(run_layers, x, part, use_reentrant=False) if self.segment else run_layers(x, part)
        return self.head(self.norm(x))


def run_layers(x: torch.Tensor, layers: Iterable[nn.Module]) -> torch.Tensor:
    for layer in layers:
        x = layer(x)
    return x


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    shifted = logits - torch.max(logits, dim=-1, keepdim=True)[0]
    negative = -(shifted - torch.log(torch.sum(torch.exp(shifted), dim=-1, keepdim=True)))
    return torch.mean(torch.gather(negative, -1, targets.unsqueeze(-1)))


class OutOfPlaceAdamW(torch.optim.Optimizer):
    """New first and second moments each step; zeros are made and dropped even where moments exist."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "decay": 0.01})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)

    def _update(self, p: torch.Tensor, group: dict[str, Any]) -> None:
        assert p.grad is not None
        grad, state = p.grad.data, self.state[p]
        t = state.get("t", 1)
        old_m = state.get("m", torch.zeros_like(grad))
        old_v = state.get("v", torch.zeros_like(grad))
        m = group["beta1"] * old_m + ((1 - group["beta1"]) * grad)
        v = group["beta2"] * old_v + ((1 - group["beta2"]) * torch.square(grad))
        rate = group["lr"] * (math.sqrt(1 - group["beta2"] ** t) / (1 - group["beta1"] ** t))
        p.data -= rate * m / (torch.sqrt(v) + group["eps"])
        p.data -= group["lr"] * group["decay"] * p.data
        state["m"], state["v"], state["t"] = m, v, t + 1


class Training(nn.Module):
    """The model with its loss; logits stay, as a script's variable does, until the step is over."""

    def __init__(self, model: nn.Module, autocast: bool) -> None:
        super().__init__()
        self.model, self.autocast, self.logits = model, autocast, None

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.autocast):
            self.logits = None
            self.logits = self.model(ids)
            return cross_entropy(self.logits, targets)  # type: ignore[arg-type]
