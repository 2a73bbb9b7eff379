"""rasbt/pytorch-memory-optim: torchvision's ViT-L/16 with ten classes; bytes reserved over an epoch, in units of 1e9.

The header of the log says batch 32; script and number of batches say 64. Gradients of the last step live through the
forward (`zero_grad` stands before the backward), but for gradient accumulation. The nightly build of that June had the
Adam of torch 2.0, which made two lists of temporaries where later versions make one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import memfit
from cuda_rows.common import Case

CARD, VERSION = "rtxa6000", "2.1.0"


def model(dtype: torch.dtype) -> nn.Module:
    from torchvision.models import vit_l_16

    made = vit_l_16(weights=None)
    made.heads.head = nn.Linear(1024, 10)
    return made.to(dtype)


def loss(network: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    return F.cross_entropy(network(images), labels)


class EarlierAdam(torch.optim.Optimizer):
    """Adam over lists of tensors as in torch 2.0."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 5e-5})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        for p in held:
            if not self.state[p]:
                self.state[p] = {"m": torch.zeros_like(p), "v": torch.zeros_like(p)}
        gradients = [p.grad for p in held]
        first, second = ([self.state[p][name] for p in held] for name in "mv")
        torch._foreach_mul_(first, 0.9)
        torch._foreach_add_(first, gradients, alpha=0.1)
        torch._foreach_mul_(second, 0.999)
        torch._foreach_addcmul_(second, gradients, gradients, 0.001)
        roots = torch._foreach_sqrt(second)
        torch._foreach_div_(roots, 1.0)
        divisors = torch._foreach_add(roots, 1e-8)
        torch._foreach_addcdiv_(held, first, divisors, -5e-5)


def job(batch: int, dtype: torch.dtype, *, accumulation: int = 1) -> memfit.Job:
    size = batch * accumulation
    inputs = (torch.empty(size, 3, 224, 224, dtype=dtype), torch.zeros(size, dtype=torch.int64))
    made = memfit.Job(lambda: model(dtype), loss, inputs, EarlierAdam,
                      zero_grad="before_backward" if accumulation == 1 else "after_step")
    made.rules.micro_batches = accumulation
    return made


def cases() -> list[Case]:
    return [
        Case("P203", CARD, lambda: job(64, torch.float32), "reserved", torch=VERSION, patches=True),
        Case("P204", CARD, lambda: job(64, torch.float32), "reserved", torch=VERSION, patches=True),
        Case("P207", CARD, lambda: job(16, torch.bfloat16), "reserved", torch=VERSION, patches=True),
        Case("P208", CARD, lambda: job(4, torch.bfloat16, accumulation=4), "reserved", torch=VERSION, patches=True),
    ]
