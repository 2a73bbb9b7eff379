"""torchao's table of optimizers: timm's ViT-H and ViT-g fine-tuned on 45 classes, 224 x 224, RTX 4070 Ti SUPER.

Compiled rows are predicted as they run eagerly, and marked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import memfit
from cuda_rows.common import Case


class Tuned(nn.Module):
    def __init__(self, name: str, *, bf16: bool, checkpointing: bool, **options: Any) -> None:
        super().__init__()
        import timm

        self.model, self.autocast = timm.create_model(name, pretrained=False, num_classes=45, **options), not bf16
        if checkpointing:
            self.model.set_grad_checkpointing()
        if bf16:
            self.model.bfloat16()

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.autocast):
            return F.cross_entropy(self.model(images), labels)


def job(name: str, batch: int, *, bf16: bool, checkpointing: bool, **options: Any) -> memfit.Job:
    dtype = torch.bfloat16 if bf16 else torch.float32
    inputs = (torch.empty(batch, 3, 224, 224, dtype=dtype), torch.zeros(batch, dtype=torch.int64))
    return memfit.Job(lambda: Tuned(name, bf16=bf16, checkpointing=checkpointing, **options),
                      lambda model, data: model(*data), inputs, lambda parameters: torch.optim.AdamW(parameters, fused=True))


def cases() -> list[Case]:
    card, giant = "rtx4070tisuper", "vit_giant_patch14_dinov2"
    huge = lambda: job("vit_huge_patch14_224", 8, bf16=False, checkpointing=False)  # noqa: E731
    bf16 = lambda: job(giant, 32, bf16=True, checkpointing=True, img_size=224)  # noqa: E731
    return [
        Case("P241", card, huge, torch="2.4", patches=True, note="compiled; predicted as eager"),
        Case("P247", card, bf16, torch="2.4", patches=True),
        Case("P251", card, bf16, torch="2.4", patches=True, note="compiled; predicted as eager"),
    ]
