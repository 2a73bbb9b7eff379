"""What a trace for a card does to the process: nothing that stays."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.optim.optimizer as optimizer_module
from torch import nn
from torch.nn import functional as F

from memfit.core.errors import Untraceable
from memfit.jobs import Job
from memfit.simulate import peak_of
from memfit.trace import trace_job
from memfit.trace.cuda import CudaTarget

CARD = CudaTarget((8, 6), 28)
OPERATORS = ("dropout", "softmax.int", "batch_norm", "scaled_dot_product_attention", "rms_norm")


def state() -> dict[str, Any]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    x = torch.ones(4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        types = ((x @ x).dtype, x.exp().dtype, torch.cat((x, x.bfloat16())).dtype, F.layer_norm(x.bfloat16(), (4,)).dtype)
    return {
        "kernels": sum(has(name, key) for name in names for key in ("AutogradCPU", "AutocastCPU")),
        "types": types,
        "dropout": type(F.dropout(x, 0.5).grad_fn).__name__,
        "attention": type(F.scaled_dot_product_attention(*[x.reshape(1, 1, 4, 4)] * 3).grad_fn).__name__,
        "foreach": list(optimizer_module._foreach_supported_types),
        "enabled": (torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")),
        "functions": (torch.autocast.__init__, torch.autocast.__enter__, torch.cuda.synchronize),
    }


def using(failing: bool = False) -> Job:
    def loss(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.float16):
            out = F.dropout(net(batch), 0.1).softmax(-1)
            if failing:
                raise KeyError("no such column")
        return out.mean()

    return Job(nn.Linear(16, 16), loss, torch.randn(4, 16), torch.optim.AdamW)


def test_nothing_stays() -> None:
    before = state()
    trace_job(using(), CARD)
    assert state() == before
    with pytest.raises(Untraceable):
        trace_job(using(failing=True), CARD)
    assert state() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="autocast for cuda is on here")
def test_autocast_for_cuda_is_off_again() -> None:
    trace_job(using(), CARD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not torch.autocast("cuda")._enabled


def test_a_trace_for_the_cpu_is_the_same_before_and_after() -> None:
    before = peak_of(trace_job(using()).steady)
    trace_job(using(), CARD)
    assert peak_of(trace_job(using()).steady) == before


def test_real_tensors_go_their_own_way_during_a_trace() -> None:
    seen: dict[str, Any] = {}
    real = torch.ones(4, 4, requires_grad=True)

    def loss(net: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with torch._C._DisableTorchDispatch():
            seen["value"] = F.softmax(real, -1).sum().item()
        return net(batch).mean()

    trace_job(Job(nn.Linear(16, 16), loss, torch.randn(4, 16), torch.optim.SGD), CARD)
    assert seen["value"] == pytest.approx(4.0)
