"""Stanford CS336, assignment 2: students' allocator traces and reports."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import memfit
from cuda_rows.common import Case, script_job, token_ids
from cuda_rows.cs336_model import VOCABULARY, LanguageModel, OutOfPlaceAdamW, Training

SMALL, MEDIUM, XL = (768, 3072, 12, 12), (1024, 4096, 24, 16), (2560, 10240, 32, 32)  # width, inner, layers, heads


def training(size: tuple[int, int, int, int], length: int, *, autocast: bool = False, segment: int = 0,
             zero_grad: Any = "before_forward", wide_mask: bool = False) -> memfit.Job:
    batch = {"ids": token_ids(4, length, VOCABULARY), "targets": token_ids(4, length, VOCABULARY)}
    return memfit.Job(lambda: Training(LanguageModel(size, length, segment, wide_mask), autocast),
                      lambda model, inputs: model(inputs["ids"], inputs["targets"]), batch, OutOfPlaceAdamW,
                      zero_grad=zero_grad)


def forward_only(size: tuple[int, int, int, int], length: int, *, graph: bool, wide_mask: bool = False) -> memfit.Job:
    def body(model: nn.Module, ids: torch.Tensor) -> None:
        with torch.set_grad_enabled(graph):
            model(ids)

    return script_job(lambda: LanguageModel(size, length, wide_mask=wide_mask), body, token_ids(4, length, VOCABULARY))


def linear_forward() -> memfit.Job:
    """Three inputs through one Linear without a graph; the last input and output live while the next are made."""

    def body(model: nn.Module, _: Any) -> None:
        with torch.no_grad():
            inputs = outputs = None
            for _step in range(3):
                inputs = torch.randn(5000, 10000)
                outputs = model(inputs)
        del inputs, outputs

    return script_job(lambda: nn.Linear(10000, 50000), body)


def cases() -> list[Case]:
    a100, trace, report = "a100-80gb", "2.11.0+cu128", "2.11.0"
    students = "the model is the author's own and only partly published; built like the course's"
    found = [
        Case("P001", a100, lambda: training(MEDIUM, 128, zero_grad="after_step"), torch=trace),
        Case("P002", a100, lambda: forward_only(MEDIUM, 128, graph=False), torch=trace),
        Case("P005", a100, lambda: training(MEDIUM, 512, autocast=True, zero_grad="after_step"), torch=trace),
        Case("P010", a100, lambda: forward_only(SMALL, 128, graph=False), torch="2.2", note=students),
        Case("P012", "h100-sxm", lambda: forward_only(XL, 128, graph=True, wide_mask=True), torch="2.6", note=students),
        Case("P014", "h100-sxm", lambda: training(XL, 128, wide_mask=True), "first_allocated", torch="2.6", note=students),
        Case("P022", "h100-sxm", linear_forward, torch="2.5"),
        Case("P025", a100, lambda: training(XL, 128), torch=report),
        Case("P026", a100, lambda: training(XL, 128, autocast=True), torch=report),
        Case("P027", a100, lambda: forward_only(XL, 512, graph=True), torch=report),
        Case("P029", a100, lambda: training(XL, 512), torch=report),
        Case("P030", a100, lambda: training(XL, 512, autocast=True), torch=report),
    ]
    for row, length, segment in (("P031", 512, 1), ("P034", 512, 8), ("P036", 512, 32), ("P038", 2048, 2)):
        found.append(Case(row, a100, lambda n=length, s=segment: training(XL, n, segment=s), torch=report))
    return found
