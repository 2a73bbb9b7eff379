"""A TARGET for memfit: a file with a function that returns a Job. Replace the numbered parts with your own.

    memfit estimate train_job.py:job               how much memory a step needs
    memfit plan     train_job.py:job --budget 40%  the fastest way that fits
    memfit train    train_job.py:job --budget 40% --epochs 1
    memfit prove    train_job.py:job --budget 40%  the same result, shown
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import memfit

# What is imported here is not counted against the budget; what job() makes is. So import at the top, and keep data
# lazy: read or map it when a batch is asked for.
TEXT = Path(argparse.__file__)


class NextByte(nn.Module):
    """1. The model: any torch.nn.Module. Here a small transformer that predicts the next byte of a text."""

    def __init__(self, width: int = 128, layers: int = 4, length: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits [samples, length, 256] of the byte after each of ids [samples, length]."""
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        hidden = self.embed(ids) + self.place[: ids.shape[1]]
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """2. The loss: a scalar, the mean over the batch. Labels of -100 do not count."""
    return functional.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def batches(epoch: int, batch: int, seq: int) -> Iterator[dict[str, torch.Tensor]]:
    """3. The data: the batches of an epoch. A torch DataLoader does as well."""
    draws = random.Random(epoch)
    text = TEXT.read_bytes()
    for _ in range(len(text) // (batch * seq)):
        starts = [draws.randrange(len(text) - seq - 1) for _ in range(batch)]
        rows = torch.tensor([list(text[start:start + seq + 1]) for start in starts])
        yield {"ids": rows[:, :-1].contiguous(), "labels": rows[:, 1:].contiguous()}


def job(batch: int = 32, seq: int = 128, lr: float = 1e-3, seed: int = 0) -> memfit.Job:
    """4. The job. Its arguments are settings: `--set batch=64`."""

    def model() -> nn.Module:  # as a function: `estimate` and `plan` then build it without allocating its weights
        torch.manual_seed(seed)
        return NextByte(length=seq)

    return memfit.Job(
        model,
        loss,
        next(batches(0, batch, seq)),  # a sample batch
        lambda parameters: torch.optim.AdamW(parameters, lr=lr),
        data=lambda epoch: batches(epoch, batch, seq),  # or leave it out: then every step repeats the sample batch
        clip_norm=1.0,  # or leave it out
    )
