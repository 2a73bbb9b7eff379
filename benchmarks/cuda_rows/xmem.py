"""xMem's published runs: peaks of the memory that the driver reports as used, above its first reading.

The CUDA context is there before the first reading, so a row is what the allocator reserves and the kernels loaded meanwhile.
Four iterations in fp32; `out` and the inputs stay until the next iteration has its own; SGD, Adam, AdamW, RMSprop, Adagrad
with lr 1e-3 and all else default. Where the file does not record the place of `zero_grad`, it stands at the top of the
iteration or before the backward: predicted is the top, and the interval reaches to the other. Texts are padded to the
longest line, at most 128 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import memfit
from cuda_rows import hf_models
from cuda_rows.common import Case, Remembering, token_ids

LIBRARY, VERSION = "4.51.3", "2.6.0+cu124"
CARDS = {"3060": "rtx3060", "4060": "rtx4060", "a100": "a100-40gb"}
PLACES = {"?": "before_forward", "0": "before_forward", "1": "before_backward", "2": "after_step"}
# row model optimizer batch place-of-zero-grad card
NETS = """X003 convnext_base RMSprop 200 ? 3060, X005 convnext_tiny Adagrad 200 ? 3060, X007 convnext_tiny AdamW 200 ? 3060,
X008 convnext_tiny AdamW 400 ? 3060, X009 convnext_tiny RMSprop 600 ? 3060, X010 convnext_tiny SGD 500 ? 3060,
X015 mnasnet SGD 700 ? 3060, X016 mobilenet_v3_large AdamW 300 ? 3060, X017 mobilenet_v3_large RMSprop 700 ? 3060,
X019 convnext_tiny AdamW 261 ? 4060, X020 convnext_tiny RMSprop 303 ? 4060, X021 mnasnet Adagrad 469 ? 4060,
X024 mobilenet_v3_small AdamW 638 ? 3060, X025 mobilenet_v3_small SGD 258 ? 3060, X027 mobilenet_v2 Adagrad 477 ? 4060,
X030 regnet_x_400mf Adam 382 ? 3060, X034 regnet_y_400mf Adagrad 548 ? 4060, X035 regnet_y_400mf RMSprop 311 ? 4060,
X038 resnet101 SGD 351 ? 3060, X039 resnet152 Adam 326 ? 3060, X041 vgg16 AdamW 560 ? 3060, X042 vgg16 SGD 684 ? 3060,
X044 vgg19 AdamW 377 ? 3060, X046 convnext_base Adam 209 1 4060, X047 convnext_base Adam 292 2 3060,
X050 convnext_tiny Adam 230 0 3060, X054 mnasnet Adam 704 1 4060, X057 mnasnet SGD 506 2 4060,
X060 mobilenet_v3_large RMSprop 425 0 4060"""
TEXTS = """X062 cerebras-gpt-111m SGD 10 ? 3060, X066 gpt-neo-125m Adam 25 ? 3060, X068 gpt-neo-125m SGD 20 ? 3060,
X070 cerebras-gpt-111m AdamW 16 ? 4060, X071 distilgpt2 AdamW 22 ? 4060, X072 distilgpt2 AdamW 28 ? 3060,
X074 opt-125m AdamW 11 ? 4060, X076 opt-125m AdamW 38 ? 3060, X078 opt-350m AdamW 7 ? 3060, X079 opt-350m AdamW 13 ? 3060,
X080 opt-350m AdamW 18 ? 3060, X081 gpt2 AdamW 27 ? 3060, X083 gpt-neo-125m Adam 9 1 4060, X084 gpt-neo-125m Adam 28 2 3060,
X087 gpt-neo-125m SGD 24 1 3060, X088 gpt-neo-125m SGD 24 0 4060, X089 t5-small Adam 12 2 3060, X091 t5-small SGD 23 1 4060,
X092 t5-small SGD 61 1 3060, X093 deepseek-r1-distill-qwen-1.5b Adafactor 1 0 a100,
X094 deepseek-r1-distill-qwen-1.5b SGD 1 0 a100"""


def net(name: str) -> nn.Module:
    from torchvision import models

    if name == "mnasnet":
        return models.MNASNet(1.0, num_classes=10)
    if name.startswith("mobilenet_v3"):
        return getattr(models, name)(weights=None, num_classes=10)
    return getattr(models, name)(weights=None)


def net_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def text_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(**batch).loss


def optimizer(name: str) -> Callable[..., torch.optim.Optimizer]:
    def make(parameters: Any) -> torch.optim.Optimizer:
        if name == "Adafactor":
            from transformers.optimization import Adafactor

            return Adafactor(parameters, lr=1e-3, relative_step=False)
        return getattr(torch.optim, name)(parameters, lr=1e-3)

    return make


def net_job(name: str, optimizer_name: str, batch: int, place: str) -> memfit.Job:
    inputs = (torch.empty(batch, 3, 86, 86), torch.zeros(batch, dtype=torch.int64))
    return memfit.Job(lambda: Remembering(net(name)), net_loss, inputs, optimizer(optimizer_name),
                      zero_grad=PLACES[place])  # type: ignore[arg-type]


def text_job(name: str, optimizer_name: str, batch: int, place: str) -> memfit.Job:
    inputs = {key: token_ids(batch, 128) for key in ("input_ids", "labels")}
    inputs["attention_mask"] = torch.ones(batch, 128, dtype=torch.int64)
    return memfit.Job(lambda: Remembering(hf_models.make(name)), text_loss, inputs, optimizer(optimizer_name),
                      zero_grad=PLACES[place])  # type: ignore[arg-type]


def cases() -> list[Case]:
    found = []
    for rows, job, library in ((NETS, net_job, ""), (TEXTS, text_job, LIBRARY)):
        for line in rows.split(","):
            row, name, optimizer_name, batch, place, card = line.split()
            found.append(Case(
                row, CARDS[card], lambda j=job, n=name, o=optimizer_name, b=int(batch), p=place: j(n, o, b, p),
                "reserved_and_kernels", library, VERSION, job is net_job,
                note="place of zero_grad not recorded" if place == "?" else "",
                or_else=(lambda j=job, n=name, o=optimizer_name, b=int(batch): j(n, o, b, "1")) if place == "?" else None))
    return found
