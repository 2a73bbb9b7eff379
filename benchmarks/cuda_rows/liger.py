"""Liger-Kernel's benchmark of single operators and modules: the reference implementations (torch, transformers).

Each benchmark repeats forward and backward and takes the median of the peaks; gradients are added up over the repeats, and
all but the losses keep the graph through the backward (`retain_graph=True`). Both implementations' modules are on the card.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import memfit
from cuda_rows import liger_losses as losses
from cuda_rows.common import Case, Products, script_job

A100, H100 = "a100-80gb", "h100-sxm"


class Input(nn.Module):
    """`x` as a leaf that collects its gradient, modules that work on it, and the gradient `dy` that comes from above."""

    def __init__(self, x: torch.Tensor, dy: torch.Tensor | None = None, **modules: nn.Module) -> None:
        super().__init__()
        self.x = nn.Parameter(x)
        self.register_buffer("dy", dy)
        for name, module in modules.items():
            self.add_module(name, module)


def retained(make: Callable[[], Input], forward: Callable[[Any], torch.Tensor], products: Products = "") -> memfit.Job:
    """`y = forward(...)`, then its backward from `dy` (drawn where there is none), with the graph kept."""

    def body(subject: Any, _: Any) -> None:
        y = forward(subject)
        y.backward(torch.randn_like(y) if subject.dy is None else subject.dy, retain_graph=True)

    return script_job(make, body, products=products, keeps_gradients=True)



# ---- modules


class LlamaNorm(nn.Module):
    """Root mean square norm as in Llama: fp32 inside, weights of their own type."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-6)
        return self.weight * x.to(dtype)


class LlamaMLP(nn.Module):
    def __init__(self, width: int, inner: int, tanh: bool) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False, dtype=torch.bfloat16) for _ in range(2))
        self.down, self.tanh = nn.Linear(inner, width, bias=False, dtype=torch.bfloat16), tanh

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate(x)
        return self.down((F.gelu(gate, approximate="tanh") if self.tanh else F.silu(gate)) * self.up(x))


def norm(rows: int, width: int) -> memfit.Job:
    """Root mean square norm, bf16 input, fp32 weights."""
    make = lambda: Input(torch.empty(rows, width, dtype=torch.bfloat16), torch.empty(rows, width, dtype=torch.bfloat16),  # noqa: E731
                         norm=LlamaNorm(width), other=LlamaNorm(width))
    return retained(make, lambda subject: subject.norm(subject.x))


def layer_norm(rows: int, width: int) -> memfit.Job:
    make = lambda: Input(torch.empty(rows, width), torch.empty(rows, width), norm=nn.LayerNorm(width),  # noqa: E731
                         other=nn.LayerNorm(width))
    return retained(make, lambda subject: subject.norm(subject.x))


def gated(batch: int, length: int, *, tanh: bool) -> memfit.Job:
    make = lambda: Input(torch.empty(batch, length, 4096, dtype=torch.bfloat16), mlp=LlamaMLP(4096, 11008, tanh))  # noqa: E731
    return retained(make, lambda subject: subject.mlp(subject.x), "backward")


def gated_forward(batch: int, length: int) -> memfit.Job:
    """The forward with its graph, in a process that has run backwards before."""
    make = lambda: Input(torch.empty(batch, length, 4096, dtype=torch.bfloat16), mlp=LlamaMLP(4096, 11008, True))  # noqa: E731

    def body(subject: Any, _: Any) -> None:
        subject.mlp(subject.x)

    return script_job(make, body, products="backward", keeps_gradients=True)


class Rotary(nn.Module):
    """Rotary positions: q and k as transposed leaves [1, length, heads, width], tables cos and sin, gradients from above."""

    def __init__(self, hidden: int, length: int) -> None:
        super().__init__()
        width = hidden // 32
        for name, heads in (("q", 32), ("k", 8)):
            leaf = nn.Parameter(torch.empty(1, length, heads, width, dtype=torch.bfloat16))
            self.register_parameter(f"leaf_{name}", leaf)
            self.register_buffer(name, leaf.transpose(1, 2))
            self.register_buffer(f"d{name}", torch.randn_like(leaf.detach().transpose(1, 2)))
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(1, length, width, dtype=torch.bfloat16))
        self.register_buffer("places", torch.arange(length)[None])


def rotate(x: torch.Tensor) -> torch.Tensor:
    first = x[..., : x.shape[-1] // 2]
    second = x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def rotary(hidden: int, length: int) -> memfit.Job:
    def body(subject: Any, _: Any) -> None:
        cos, sin = subject.cos.unsqueeze(1), subject.sin.unsqueeze(1)
        q = (subject.q * cos) + (rotate(subject.q) * sin)
        k = (subject.k * cos) + (rotate(subject.k) * sin)
        torch.autograd.grad((q, k), (subject.q, subject.k), (subject.dq, subject.dk), allow_unused=True, retain_graph=True)

    return script_job(lambda: Rotary(hidden, length), body, products="forward")  # the tables were made by a product


def cases() -> list[Case]:
    found = [Case(row, A100, lambda w=width: norm(2048, w), torch="2.4")
             for row, width in (("P337", 2048), ("P338", 4096), ("P340", 16384), ("P341", 32768))]
    found += [Case(row, card, lambda w=width: layer_norm(4096, w), torch=version) for row, width, card, version in (
        ("P334", 8192, A100, "2.4"), ("P335", 16384, A100, "2.4"), ("P377", 8192, H100, "2.6"), ("P378", 16384, H100, "2.6"))]
    found += [Case(row, A100, lambda n=length: gated(8, n, tanh=True), torch="2.4")
              for row, length in (("P325", 4096), ("P326", 8192))]
    found += [Case(row, A100, lambda n=length: gated_forward(8, n), torch="2.4")
              for row, length in (("P327", 1024), ("P328", 2048), ("P329", 4096))]
    found.append(Case("P352", A100, lambda: gated(4, 4096, tanh=False), torch="2.4"))
    found += [Case(row, A100, lambda h=hidden, n=length: rotary(h, n), torch="2.4") for row, hidden, length in (
        ("P343", 2048, 2048), ("P344", 8192, 2048), ("P346", 8192, 2048), ("P347", 8192, 4096), ("P348", 8192, 8192),
        ("P349", 8192, 16384))]
    return found + losses.cases()
