"""rasbt/pytorch-memory-optim: torchvision's ViT-L/16 with ten classes; bytes reserved over an epoch, in units of 1e9.

The header of the log says batch 32; script and number of batches say 64. Gradients of the last step live through the
forward (`zero_grad` stands before the backward), but for gradient accumulation.
"""

from __future__ import annotations

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


def job(batch: int, dtype: torch.dtype, *, accumulation: int = 1) -> memfit.Job:
    size = batch * accumulation
    inputs = (torch.empty(size, 3, 224, 224, dtype=dtype), torch.zeros(size, dtype=torch.int64))
    made = memfit.Job(lambda: model(dtype), loss, inputs, lambda parameters: torch.optim.Adam(parameters, lr=5e-5),
                      zero_grad="before_backward" if accumulation == 1 else "after_step")
    made.rules.micro_batches = accumulation
    return made


def cases() -> list[Case]:
    return [
        Case("P203", CARD, lambda: job(64, torch.float32), "reserved", torch=VERSION),
        Case("P204", CARD, lambda: job(64, torch.float32), "reserved", torch=VERSION),
        Case("P207", CARD, lambda: job(16, torch.bfloat16), "reserved", torch=VERSION),
        Case("P208", CARD, lambda: job(4, torch.bfloat16, accumulation=4), "reserved", torch=VERSION),
    ]
