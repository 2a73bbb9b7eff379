"""The documentation page on training on one GPU (January 2022): BERT-large classifies 512 random ids; nvidia-smi's figure.

transformers of that time does not install on a supported Python; 4.41 has the same attention written out, and its AdamW
and Adafactor. torch before 2.0 fills gradients with zeros where later ones drop them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

import memfit
from cuda_rows import hf_models
from cuda_rows.common import Case, token_ids

LIBRARY = "4.41.2"


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    from transformers import AdamW

    class Zeroing(AdamW):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none=False)

    return Zeroing(parameters, lr=5e-5, no_deprecation_warning=True)


def adafactor(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    from transformers import Adafactor

    class Zeroing(Adafactor):
        def zero_grad(self, set_to_none: bool = True) -> None:
            super().zero_grad(set_to_none=False)

    return Zeroing(parameters, lr=5e-5, scale_parameter=False, relative_step=False)


class Classifier(nn.Module):
    def __init__(self, checkpointing: bool, half: bool) -> None:
        super().__init__()
        self.model, self.half_precision = hf_models.make("bert-large", "eager"), half
        if checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})

    def forward(self, **inputs: Any) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.float16, enabled=self.half_precision):
            return self.model(**inputs).loss.float()


def job(
    batch: int, optimizer: Callable[..., torch.optim.Optimizer], *, accumulation: int = 1, checkpointing: bool = False,
    half: bool = False,
) -> memfit.Job:
    size = batch * accumulation
    inputs = {"input_ids": token_ids(size, 512, 30000), "labels": torch.zeros(size, dtype=torch.int64)}
    made = memfit.Job(lambda: Classifier(checkpointing, half), lambda model, data: model(**data), inputs, optimizer,
                      clip_norm=1.0)
    made.rules.micro_batches = accumulation
    return made


def cases() -> list[Case]:
    card, version = "v100-16gb", "1.10"
    note = "which 16 GB card is not published; library nearest that installs"
    return [
        Case("P259", card, lambda: job(1, adamw, accumulation=4), "process", LIBRARY, version, note=note),
        Case("P260", card, lambda: job(1, adamw, accumulation=4, checkpointing=True), "process", LIBRARY, version, note=note),
        Case("P262", card, lambda: job(1, adamw, accumulation=4, checkpointing=True, half=True), "process", LIBRARY, version,
             note=note),
        Case("P263", card, lambda: job(4, adafactor), "process", LIBRARY, version, note=note),
    ]
