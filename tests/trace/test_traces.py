"""What a trace says besides its peak: modules, recomputation, buffers, windows; and that tracing leaves no mark."""

from __future__ import annotations

import functools
import gc
import random

import numpy as np
import pytest
import torch
from torch import nn
from trace_jobs import checkpointed, classifying, layers

from memfit.core.device import Device
from memfit.core.errors import Untraceable
from memfit.core.trace import Trace
from memfit.jobs import Job
from memfit.simulate import simulate
from memfit.trace import FakeWorld, fake_job, trace_job, trace_step

CPU = Device("cpu", "cpu", 8 << 30, {"float32": 1e11}, 1e10)


def flops(trace: Trace, phase: str) -> int:
    return sum(op.flops for op in trace.ops if op.phase == phase)


def test_backward_work_belongs_to_the_module_of_its_forward() -> None:
    trace = trace_job(classifying(layers(depth=2), torch.randn(64, 512))).steady
    products = [op.module for op in trace.ops if op.phase == "backward" and op.name == "mm"]
    assert products == ["6", "6", "3", "3", "0"]
    assert flops(trace, "backward") > flops(trace, "forward") > 0


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_work_is_marked(reentrant: bool) -> None:
    trace = trace_job(checkpointed(reentrant)).steady
    again = [op for op in trace.ops if op.recomputed]
    assert {op.phase for op in again} == {"backward"}
    assert {op.module.split(".")[0] for op in again} == {"blocks"}
    assert sum(op.name == "gelu" for op in again) == 3
    assert not any(op.name.endswith("_backward") for op in again)


class Updating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(32, 10), nn.BatchNorm1d(32)
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("average", torch.zeros(32))
        self.register_buffer("constant", torch.ones(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        return self.linear(self.norm(x * self.constant))


def test_buffers_that_forward_changes_are_named() -> None:
    trace = trace_job(classifying(Updating(), torch.randn(16, 32))).first
    assert trace.mutated_buffers == (
        "average", "norm.num_batches_tracked", "norm.running_mean", "norm.running_var", "seen")


def test_a_window_by_its_first_two_parts_is_the_whole_window() -> None:
    def traced(repeat: bool) -> Trace:
        world = FakeWorld()
        job = classifying(layers(), torch.randn(1024, 512), lambda p: torch.optim.AdamW(p))
        fake = fake_job(job, world)
        fake.rules.micro_batches = 8
        trace_step(fake, world)
        return trace_step(fake, world, repeat=repeat)

    short, whole = traced(True), traced(False)
    assert len(short.ops) < len(whole.ops)
    assert simulate(short, CPU).peak.allocated_bytes == simulate(whole, CPU).peak.allocated_bytes
    weights = dict(zip(range(len(short.events)), short.weights(), strict=True))
    assert sum(weights[i] for i, (kind, _) in enumerate(short.events) if kind == 2) == len(whole.ops)


@functools.lru_cache
def positions(length: int) -> torch.Tensor:
    return torch.arange(length).float()


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + positions(32))


def test_tracing_leaves_no_mark_on_the_process() -> None:
    inputs, apply, collecting = torch.randn(8, 32), nn.Module._apply, gc.isenabled()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()

    def make() -> nn.Module:
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        return Cached().half().float()

    job = classifying(make, inputs)
    trace_job(job)
    assert nn.Module._apply is apply and gc.isenabled() is collecting
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])
    assert type(positions(32)) is torch.Tensor  # the cache does not give a fake one to the real step
    assert type(job.model.linear.weight) is nn.Parameter and job.model.linear.weight.is_leaf
    job.loss(job.model, job.batch).backward()


def test_sparse_gradients_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(100, 8, sparse=True), nn.Flatten(), nn.Linear(32, 10))
    with pytest.raises(Untraceable, match="in 0 makes a sparse tensor"):
        trace_job(classifying(model, torch.randint(0, 100, (16, 4))))


def test_a_shape_that_depends_on_unknown_values_is_refused_by_name() -> None:
    class Pruned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x)
            return y[y[:, 0] > 0]

    model = Pruned()
    job = Job(model, lambda net, x: net(x).sum(), torch.randn(8, 32), torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(Untraceable, match=r"index.*inner") as caught:
        trace_job(job)
    assert "\n" not in caught.value.message and caught.value.advice
