"""A step on fake CPU tensors, as a card would run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memfit.core.trace import Storage, Trace
from memfit.jobs import Job
from memfit.trace import Traces, trace_job
from memfit.trace.cuda import CudaTarget
from memfit.trace.cuda.reductions import reduction_buffers

CARD = CudaTarget((8, 6), 28)
A100 = CudaTarget((8, 0), 108)
Optimizer = Callable[..., torch.optim.Optimizer]


def traced(model: Any, inputs: Any, loss: Callable[[nn.Module, Any], torch.Tensor], make: Optimizer = torch.optim.SGD,
           target: CudaTarget = CARD) -> Traces:
    return trace_job(Job(model, loss, inputs, make), target)


def mean_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch).float().mean()


def calls(trace: Trace) -> Counter[str]:
    return Counter(op.name for op in trace.ops)


def made_by(trace: Trace, op: str) -> list[Storage]:
    return [storage for storage in trace.storages[trace.resident:] if storage.op == op]


class Autocast(nn.Module):
    """The same weight through `linear` and through `einsum`, each twice."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.one, self.other, self.norm = nn.Linear(64, 64, bias=False), nn.Parameter(torch.ones(64, 64)), nn.LayerNorm(64)
        self.dtype = dtype
        self.seen: dict[str, torch.dtype] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=self.dtype):
            x = self.one(self.one(x))
            x = torch.einsum("bi,oi->bo", torch.einsum("bi,oi->bo", x, self.other), self.other)
            results = {"product": x, "norm": self.norm(x), "softmax": x.softmax(-1), "exp": x.exp(), "sum": x.sum(),
                       "mean": x.mean(), "cat": torch.cat((x, x)), "pow": x**2, "add": x + x,
                       "mixed": torch.scatter_add(x, 0, torch.zeros(8, 64, dtype=torch.long), torch.ones(8, 64))}
            self.seen = {name: result.dtype for name, result in results.items()}
            assert torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") is self.dtype
        return results["norm"] + results["softmax"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_follows_the_lists_of_cuda(dtype: torch.dtype) -> None:
    model = Autocast(dtype)
    seen: dict[str, torch.dtype] = {}

    def loss(net: Any, batch: Any) -> torch.Tensor:
        out = net(batch).sum()
        seen.update(net.seen)
        return out

    steady = traced(model, torch.randn(8, 64), loss).steady
    low = {name for name, found in seen.items() if found is dtype}
    assert low == {"product", "mean", "cat", "add"}
    assert {seen[name] for name in seen if name not in low} == {torch.float32}
    casts = [s for s in made_by(steady, "_to_copy") if s.phase == "forward" and s.shape == (64, 64)]
    assert len(casts) == 2  # each weight once, though it is used twice


def test_half_softmax_goes_to_float_in_one_kernel() -> None:
    def loss(net: nn.Module, batch: Any) -> torch.Tensor:
        return net(batch).softmax(-1, dtype=torch.float32).mean()

    by_dtype = {}
    for dtype in (torch.float16, torch.bfloat16):
        steady = traced(nn.Linear(64, 64, dtype=dtype), torch.randn(8, 64, dtype=dtype), loss).steady
        by_dtype[dtype] = calls(steady)["_to_copy"]
    assert by_dtype[torch.float16] == 0 and by_dtype[torch.bfloat16] > 0


def test_dropout_leaves_a_byte_an_element() -> None:
    steady = traced(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1)), torch.randn(32, 64), mean_of).steady
    outputs = made_by(steady, "native_dropout")
    assert sorted(one.nbytes for one in outputs) == [32 * 64, 32 * 64 * 4]
    assert {one.dtype for one in outputs} == {"float32", "bool"}


def test_normalizations_keep_statistics_in_float() -> None:
    norms = nn.Sequential(nn.LayerNorm(64), nn.GroupNorm(4, 8)).bfloat16()
    steady = traced(norms, torch.randn(16, 8, 64, dtype=torch.bfloat16), mean_of).steady
    for op in ("native_layer_norm", "native_group_norm"):
        assert sorted(one.dtype for one in made_by(steady, op)) == ["bfloat16", "float32", "float32"]
    image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    ops = calls(traced(image, torch.randn(4, 3, 16, 16), mean_of).steady)
    assert ops["cudnn_batch_norm"] == ops["cudnn_batch_norm_backward"] == 1 and not ops["native_batch_norm"]


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_fused_rms_norm_backward"), reason="this torch has no fused kernel")
def test_rms_norm_is_one_kernel() -> None:
    steady = traced(nn.RMSNorm(64), torch.randn(32, 64), mean_of).steady
    assert calls(steady)["_fused_rms_norm"] == calls(steady)["_fused_rms_norm_backward"] == 1
    assert sorted(one.nbytes for one in made_by(steady, "_fused_rms_norm")) == [32 * 4, 32 * 64 * 4]
    old = traced(nn.RMSNorm(64), torch.randn(32, 64), mean_of, target=CudaTarget((8, 6), 28, (2, 6))).steady
    assert not calls(old)["_fused_rms_norm"]


def test_optimizers_step_all_tensors_at_once_and_count_on_the_host() -> None:
    traces = traced(nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))), torch.randn(8, 64), mean_of, torch.optim.AdamW)
    assert calls(traces.steady)["_foreach_sqrt"] == 1 and not calls(traces.steady)["sqrt"]
    parameters = 3 * (64 * 64 + 64) * 4
    states = [one for one in traces.steady.storages[: traces.steady.resident] if one.category == "optimizer_state"]
    assert sum(one.nbytes for one in states) == 2 * parameters  # no step counters
    roots = made_by(traces.steady, "_foreach_sqrt")
    assert sum(one.nbytes for one in roots) == parameters


def test_a_live_optimizer_keeps_its_counters_on_the_host() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    first = trace_job(Job(model, mean_of, torch.randn(8, 64), optimizer), CARD).first
    states = [one for one in first.storages[: first.resident] if one.category == "optimizer_state"]
    assert sorted(one.nbytes for one in states) == [0, 0, 256, 256, 64 * 64 * 4, 64 * 64 * 4]


def test_job_code_that_asks_for_cuda() -> None:
    def loss(net: Any, batch: Any) -> torch.Tensor:
        net.to("cuda")
        x = batch.cuda()
        x = x + torch.ones(64, device="cuda") + torch.tensor(1.0, device="cuda")
        torch.cuda.synchronize()
        scaler = torch.amp.GradScaler("cuda")
        assert scaler.is_enabled()
        return scaler.scale(net(x.to("cuda:0", torch.float32)).mean())

    steady = traced(nn.Linear(64, 64), torch.randn(32, 64), loss).steady
    copies = made_by(steady, "_to_copy")
    assert all(one.nbytes == 4 for one in copies)  # of the scalar alone: what is there is not copied
    assert len([one for one in steady.storages[: steady.resident] if one.category == "parameters"]) == 2


def test_a_teacher_in_inference_mode_has_the_cards_kernels() -> None:
    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher, self.student = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", dtype=torch.float16):
                with torch.inference_mode():
                    wanted = F.dropout(self.teacher(x), 0.1)
                    assert wanted.dtype is torch.float16 and not torch.is_grad_enabled()
                assert torch.is_grad_enabled()
                return self.student(x) - wanted.clone()

    ops = calls(traced(Distilled(), torch.randn(8, 64), mean_of).steady)
    assert ops["native_dropout"] == 1 and not ops["bernoulli_"]


def test_sums_over_rows_share_them_out_over_blocks() -> None:
    """As recorded on cards: 8, 16 and 32 MiB beside a counter of 32 bytes, for 1024, 2048 and 4096 rows of 1024 floats."""
    for rows, mib in ((1024, 8), (2048, 16), (4096, 32)):
        assert reduction_buffers(torch.empty(rows, 1024, device="meta"), [0], A100) == (mib * 2**20, 32)
    assert reduction_buffers(torch.empty(4, 512, 1024, device="meta"), [0, 1], A100) == (16 * 2**20, 32)
    assert reduction_buffers(torch.empty(4096, 1024, device="meta"), [1], A100) == ()  # a row fits one block
    assert reduction_buffers(torch.empty(64, device="meta"), None, A100) == ()


def test_products_copy_what_blas_does_not_take() -> None:
    def loss(net: Any, batch: Any) -> torch.Tensor:
        return net(batch).sum()  # its gradient is one number seen 64 x 64 times

    steady = traced(nn.Linear(64, 64, bias=False), torch.randn(32, 64), loss).steady
    backward = [op for op in steady.ops if op.name == "mm" and op.phase == "backward"]
    assert [op.scratch_bytes for op in backward] == [32 * 64 * 4]
    forward = [op for op in steady.ops if op.name == "mm" and op.phase == "forward"]
    assert [op.scratch_bytes for op in forward] == [0]


def test_look_ups_sort_their_indices() -> None:
    class Indexing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(100, 16))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table[ids]

    steady = traced(Indexing(), torch.randint(0, 100, (8, 32)), mean_of).steady
    put = next(op for op in steady.ops if op.name.startswith("index_put"))
    assert put.buffers == (*[8 * 8 * 32] * 5, 1)


def test_scratch_of_cpu_kernels_is_not_counted() -> None:
    def loss(net: Any, batch: Any) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(net(batch), torch.ones(256, 512))

    trained = nn.Sequential(nn.Linear(512, 512, dtype=torch.bfloat16), nn.LayerNorm(512, dtype=torch.bfloat16))
    job = Job(trained, loss, torch.randn(256, 512, dtype=torch.bfloat16), torch.optim.SGD)
    here, there = trace_job(job).steady, trace_job(job, CARD).steady
    assert sum(op.scratch_bytes for op in here.ops) > 2**20 > sum(op.scratch_bytes for op in there.ops if op.name != "sum")
