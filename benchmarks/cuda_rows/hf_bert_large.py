"""The documentation page on training on one GPU (January 2022): BERT-large classifies 512 random ids; nvidia-smi's figure.

transformers of that time does not install on a supported Python; 4.41 has the same attention written out, and its AdamW
and Adafactor. torch before 2.0 fills gradients with zeros where later ones drop them, and before 1.11 softmax keeps its
input for backward, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

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


class KeepingSoftmax(torch.autograd.Function):
    """Softmax as in torch 1.10: input and output are saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        y = torch.softmax(x, dim)
        ctx.save_for_backward(x, y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, y = ctx.saved_tensors
        return torch.ops.aten._softmax_backward_data(grads[0], y, ctx.dim, x.dtype), None


def with_earlier_softmax(module: nn.Module) -> None:
    """The module's forward uses the softmax of torch 1.10."""
    forward = module.forward

    def earlier(*args: Any, **kwargs: Any) -> Any:
        with mock.patch.object(nn.functional, "softmax", lambda x, dim: KeepingSoftmax.apply(x, dim)):
            return forward(*args, **kwargs)

    module.forward = earlier


class Classifier(nn.Module):
    def __init__(self, checkpointing: bool, half: bool) -> None:
        super().__init__()
        self.model, self.half_precision = hf_models.make("bert-large", "eager"), half
        for module in self.model.modules():
            if type(module).__name__ == "BertSelfAttention":
                with_earlier_softmax(module)
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
