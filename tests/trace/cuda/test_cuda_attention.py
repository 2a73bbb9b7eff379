"""Which attention kernel a card runs, and what it keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from memfit.core.trace import Trace
from memfit.jobs import Job
from memfit.trace import trace_job
from memfit.trace.cuda import CudaTarget
from memfit.trace.cuda.attention_choice import CUDNN, EFFICIENT, FLASH, MATH, Call, choose

TURING, AMPERE, CONSUMER = CudaTarget((7, 5), 40), CudaTarget((8, 0), 108), CudaTarget((8, 6), 28)
HOPPER = CudaTarget((9, 0), 132)
FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
BATCH, HEADS, LENGTH, SIDE = 2, 4, 96, 64


def call(dtype: torch.dtype, *, side: int = SIDE, mask: bool = False, dropout: float = 0.0, causal: bool = False,
         keys: int = HEADS, train: bool = True) -> Call:
    def tensor(heads: int) -> torch.Tensor:
        return torch.empty(BATCH, heads, LENGTH, side, dtype=dtype, device="meta", requires_grad=train)

    masked = torch.empty(1, 1, LENGTH, LENGTH, dtype=torch.bool, device="meta") if mask else None
    return Call(tensor(HEADS), tensor(keys), tensor(keys), masked, dropout, causal, keys != HEADS)


@pytest.mark.parametrize(("target", "asked", "kind"), [
    (AMPERE, call(FP32), EFFICIENT),
    (AMPERE, call(BF16), FLASH),
    (AMPERE, call(FP16, dropout=0.1, causal=True), FLASH),
    (AMPERE, call(BF16, mask=True), EFFICIENT),
    (AMPERE, call(BF16, keys=2), FLASH),
    (AMPERE, call(BF16, side=264), EFFICIENT),
    (AMPERE, call(BF16, side=65, mask=True), MATH),
    (AMPERE, call(FP32, side=66), MATH),
    (AMPERE, call(torch.float64), MATH),
    (CONSUMER, call(BF16, side=208), EFFICIENT),
    (CONSUMER, call(BF16, side=208, train=False), FLASH),
    (TURING, call(FP16), EFFICIENT),
    (TURING, call(FP32, side=65), EFFICIENT),
    (TURING, call(BF16), MATH),
    (HOPPER, call(BF16), CUDNN),
    (HOPPER, call(BF16, side=100), FLASH),
    (HOPPER, call(FP32), EFFICIENT),
    (CudaTarget((9, 0), 132, (2, 6)), call(BF16), FLASH),
    (CudaTarget((8, 6), 28, (2, 13)), call(FP32, keys=2), MATH),  # only flash took shared heads
    (CudaTarget((8, 6), 28, (2, 14)), call(FP32, keys=2), EFFICIENT),
    (CudaTarget((8, 6), 28, (2, 13)), replace(call(FP32, keys=1), grouped=False), MATH),
    (CudaTarget((8, 6), 28, (2, 14)), replace(call(FP32, keys=1), grouped=False), EFFICIENT),
])
def test_choice(target: CudaTarget, asked: Call, kind: str) -> None:
    assert choose(asked, target) == kind


def test_kernels_that_are_switched_off() -> None:
    with sdpa_kernel([SDPBackend.MATH]):
        assert choose(call(BF16), AMPERE) == MATH
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
        assert choose(call(BF16), AMPERE) == EFFICIENT


class Attention(nn.Module):
    def __init__(self, dropout: float, mask: torch.Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.packed = nn.Linear(HEADS * SIDE, 3 * HEADS * SIDE, dtype=dtype)
        self.dropout, self.mask = dropout, mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (HEADS, SIDE)).transpose(1, 2) for t in self.packed(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, self.mask, self.dropout)


def attending(dtype: torch.dtype, dropout: float, mask: torch.Tensor | None, target: CudaTarget | None) -> Trace:
    def loss(net: Any, batch: Any) -> torch.Tensor:
        return net(batch).float().mean()

    inputs = torch.randn(BATCH, LENGTH, HEADS * SIDE, dtype=dtype)
    return trace_job(Job(lambda: Attention(dropout, mask, dtype), loss, inputs, torch.optim.SGD), target).steady


def saved(trace: Trace, op: str) -> list[int]:
    return sorted(one.nbytes for one in trace.storages if one.op == op and one.category == "activations")


def test_scores_are_never_whole_where_a_fused_kernel_runs() -> None:
    """With dropout the CPU holds all scores; a card keeps a number for each row and its random state."""
    scores = BATCH * HEADS * LENGTH * LENGTH * 4
    here = attending(FP32, 0.1, None, None)
    assert any(one.nbytes == scores for one in here.storages)
    there = attending(FP32, 0.1, None, AMPERE)
    assert not any(one.nbytes == scores for one in there.storages)
    out, rows = BATCH * LENGTH * HEADS * SIDE * 4, BATCH * HEADS * LENGTH * 4
    assert saved(there, "_scaled_dot_product_efficient_attention") == [8, 8, rows, out]
    flash = attending(BF16, 0.1, None, AMPERE)
    assert saved(flash, "_scaled_dot_product_flash_attention") == [8, 16, rows, out // 2]
    backward = next(op for op in flash.ops if op.name == "_scaled_dot_product_flash_attention_backward")
    assert backward.buffers == (BATCH * HEADS * 128 * 4, BATCH * HEADS * 128 * SIDE * 4)


def test_a_boolean_mask_becomes_numbers_of_the_queries_type() -> None:
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    steady = attending(BF16, 0.0, mask, AMPERE)
    assert any(one.op == "empty_like" and one.nbytes == LENGTH * LENGTH * 2 for one in steady.storages)
    assert any(op.name == "_scaled_dot_product_efficient_attention" for op in steady.ops)


def test_math_holds_the_scores_on_an_old_card() -> None:
    steady = attending(BF16, 0.0, None, TURING)
    assert any(one.nbytes == BATCH * HEADS * LENGTH * LENGTH * 4 for one in steady.storages)


def test_shared_heads_are_not_repeated_but_their_gradients_are_made_by_query_head() -> None:
    class Shared(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.unflatten(-1, (HEADS, SIDE)).transpose(1, 2) for t in self.packed(x).chunk(3, -1))
            return F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)

    job = Job(lambda: Shared(0.0, None, FP32), lambda net, x: net(x).mean(), torch.randn(BATCH, LENGTH, HEADS * SIDE),
              torch.optim.SGD)
    steady = trace_job(job, CudaTarget((8, 6), 28, (2, 14))).steady
    backward = next(op for op in steady.ops if op.name == "_scaled_dot_product_efficient_attention_backward")
    wide = BATCH * LENGTH * HEADS * SIDE * 4
    assert backward.buffers == (wide, wide, BATCH * HEADS * LENGTH * 4)
    assert not any(op.name.startswith("repeat") for op in steady.ops)


@pytest.mark.parametrize(("version", "copies"), [((2, 1), 1), ((2, 2), 0)])
def test_before_its_second_version_flash_packed_heads_side_by_side(version: tuple[int, int], copies: int) -> None:
    """A layer whose sequences come first has its result in place only where flash follows the layout of the query."""
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(HEADS * SIDE, HEADS, batch_first=True, dtype=BF16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    inputs = torch.randn(BATCH, LENGTH, HEADS * SIDE, dtype=BF16)
    job = Job(Layer, lambda net, x: net(x).float().mean(), inputs, torch.optim.SGD)
    steady = trace_job(job, CudaTarget((8, 6), 84, version)).steady
    place = next(i for i, op in enumerate(steady.ops) if op.name == "_scaled_dot_product_flash_attention")
    assert [op.name for op in steady.ops[place + 1: place + 2]] == (["clone"] if copies else ["addmm"])
