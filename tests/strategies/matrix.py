"""The table that every strategy goes through: a new strategy adds one row to ROWS, and is then tested alone and with
every other (fidelity, undo, names, pickle, deep copy, conflicts)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.jobs.weights import label_count

CLASSES, WIDTH, SAMPLES, LENGTH = 300, 16, 6, 8


@dataclass(frozen=True)
class Row:
    """A strategy with settings for the matrix's model. `refuses` names strategies that it cannot be with; one that `draws`
    makes random numbers of its own, whatever else it does; one that `rounds` changes parameters as it is applied."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    refuses: tuple[str, ...] = ()
    draws: bool = False
    slow: bool = False
    rounds: bool = False

    @property
    def choice(self) -> Choice:
        return Choice(self.name, self.settings)


_STATES = ("optimizer-4bit", "optimizer-8bit", "optimizer-bf16", "optimizer-factored", "optimizer-fp8")  # one at a time

_SAVED = ("compile", "compress-activations", "offload-activations", "recompute")  # decide about saved tensors, or hide them

ROWS = (
    Row("attention", {"modules": ["blocks.0", "blocks.1"]}, refuses=("compile",)),
    Row("autocast", {"dtype": "bfloat16"}, refuses=("low-precision-parameters",)),
    Row("checkpoint", {"modules": ["frozen", "blocks.0", "blocks.1"]}, refuses=("recompute",)),
    Row("chunked-loss", {"rows": 7, "module": "head"}),
    *(Row("compress-activations", settings, refuses=_SAVED) for settings in ({}, {"bits": 8})),
    Row("compile", {"modules": ["frozen", "blocks.0"]}, refuses=("offload-activations", "recompute"), draws=True, slow=True),
    Row("fused-step", refuses=("single-tensor-step", "optimizer-factored")),
    *(Row("low-precision-parameters", {"rounding": rounding}, ("low-precision-parameters",), rounds=rounding == "stochastic")
      for rounding in ("kahan", "stochastic")),
    Row("micro-batches", {"count": 4}),
    Row("offload-activations", {"place": "disk", "folder": "", "least_bytes": 64, "modules": []},
        refuses=("compile", "recompute")),
    Row("offload-optimizer", {"place": "disk", "folder": "", "least_bytes": 64}, refuses=_STATES),
    *(Row(name, refuses=(*_STATES, "single-tensor-step") if name == "optimizer-factored" else _STATES) for name in _STATES),
    Row("recompute", {"tensors": ["gelu:0-2", "native_layer_norm:0", "native_dropout:0-1"]}, refuses=("checkpoint", "compile")),
    Row("single-tensor-step", refuses=("fused-step",)),
    Row("step-in-backward"),
)


class Block(nn.Module):
    """Residual block with a normalisation and dropout."""

    def __init__(self, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.wide, self.narrow = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        normed = self.norm(x.transpose(1, 2)).transpose(1, 2) if _is_batch(self.norm) else self.norm(x)
        return {"x": x + scale * self.dropout(self.narrow(F.gelu(self.wide(normed))))}


class Mixed(nn.Module):
    """A token model with all that trips strategies: dropout, BatchNorm (moving and cumulative), tied weights, a frozen
    part, a block called twice, keyword arguments and dict outputs."""

    def __init__(self, batchnorm: bool, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.frozen = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.frozen.requires_grad_(False)
        norms = ([nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, momentum=None, affine=False)] if batchnorm
                 else [nn.LayerNorm(WIDTH), nn.GroupNorm(1, LENGTH)])
        self.blocks = nn.ModuleList(Block(norm, dropout) for norm in norms)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.frozen(self.embed(ids))
        x = self.blocks[0](x)["x"]
        x = self.blocks[1](x, scale=0.5)["x"]
        return self.head(self.blocks[1](x)["x"])


def token_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Mean cross entropy over the labels that count."""
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def mixed_job(*, batchnorm: bool = True, dropout: float = 0.2, seed: int = 0) -> Job:
    """Unequal label counts, two parameter groups, a multi-tensor AdamW and a scheduler."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Mixed(batchnorm, dropout)
    ids = torch.randint(0, CLASSES, (SAMPLES, LENGTH), generator=generator)
    labels = torch.randint(0, CLASSES, (SAMPLES, LENGTH), generator=generator)
    for row, kept in enumerate((8, 1, 5, 2, 8, 3)):
        labels[row, kept:] = -100
    matrices = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
    vectors = [p for p in model.parameters() if p.requires_grad and p.dim() <= 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=1e-2, foreach=True)
    return Job(model, token_loss, {"ids": ids, "labels": labels}, optimizer, weight=label_count,
               scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))


def _is_batch(module: nn.Module) -> bool:
    return isinstance(module, nn.BatchNorm1d)
