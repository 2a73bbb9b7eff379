"""Sources with one row each."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import memfit
from cuda_rows.common import Case, script_job

TOKENS, WIDTH, VOCABULARY = 8192, 2304, 256_000


class Head(nn.Module):
    """bf16 embeddings of tokens and the classifier of Gemma-2-2B."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Parameter(torch.empty(TOKENS, WIDTH, dtype=torch.bfloat16))
        self.classifier = nn.Parameter(torch.empty(VOCABULARY, WIDTH, dtype=torch.bfloat16))


def cut_cross_entropy() -> memfit.Job:
    """The loss only: logits in bf16, cross entropy in fp32, with the graph kept."""

    def body(head: Any, labels: torch.Tensor) -> None:
        logits = head.embeddings @ head.classifier.T
        F.cross_entropy(logits.float(), labels)

    return script_job(Head, body, torch.zeros(TOKENS, dtype=torch.int64))


def tutorial() -> memfit.Job:
    """ViT-L/16, one image, Adam over lists of tensors."""
    from torchvision.models import vit_l_16

    return memfit.Job(lambda: vit_l_16(weights=None), lambda model, images: model(images).sum(), torch.empty(1, 3, 224, 224),
                      lambda parameters: torch.optim.Adam(parameters))


def cases() -> list[Case]:
    resident = 2 * WIDTH * (TOKENS + VOCABULARY) + 8 * TOKENS
    return [
        Case("P398", "a100-80gb", cut_cross_entropy, torch="2.4.1", minus_bytes=resident, note="published rounded to GB"),
        Case("P400", "a100-80gb", tutorial, torch="2.1", patches=True, note="published as about 6 GB"),
    ]
