"""Steps that were recorded on real cards: every request that the allocator gets, in order, and the peaks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from memfit.core.device import Device
from memfit.hardware import find_device
from memfit.jobs import Job
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_replay import replay
from memfit.simulate.cuda_steps import StepPeak, StepReplay
from memfit.simulate.cuda_workspaces import workspace_bytes
from memfit.simulate.snapshots import Snapshot, load_snapshot
from memfit.trace import trace_job
from memfit.trace.cuda import target_of

DATA = Path(__file__).parents[2] / "data"


class Idle(torch.optim.Optimizer):
    """Gradients are made and nothing is updated."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        """Nothing."""


class WrittenOut(nn.Module):
    """Attention by its formula over leaf tensors, as the script of the recording has it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.empty(8, 4096, 16)) for _ in range(3))

    def forward(self) -> torch.Tensor:
        scores = torch.einsum("...qd,...kd->...qk", self.q, self.k) / math.sqrt(16)
        powers = torch.exp(scores - torch.max(scores, dim=-1, keepdim=True)[0])
        weights = powers / torch.sum(powers, dim=-1, keepdim=True)
        del scores, powers
        self.out = torch.einsum("...qk,...kd->...qd", weights, self.v)
        return self.out.sum()


class ThreeTimes(nn.Module):
    """A layer without a graph, three times; the last input and output live while the next ones are made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10000, 50000)

    def forward(self) -> torch.Tensor:
        with torch.no_grad():
            inputs = outputs = None
            for _ in range(3):
                inputs = torch.randn(5000, 10000)
                outputs = self.layer(inputs)
            del inputs, outputs
        return self.layer.bias.sum()


def first_step(model: type[nn.Module], device: Device, version: str) -> tuple[list[int], StepPeak]:
    job = Job(model, lambda net, _: net(), (), Idle)
    first = trace_job(job, target_of(device, version)).first
    allocator = CachingAllocator(record=True)
    peak = StepReplay(allocator, workspace_bytes(device, {})).run(first)
    return [entry.size for entry in allocator.log or () if entry.action == "alloc"], peak


def recorded(name: str) -> tuple[Snapshot, list[int]]:
    snapshot = load_snapshot(DATA / name)
    return snapshot, [event.size for event in snapshot.traces[0] if event.action == "alloc"]


@pytest.mark.parametrize(("name", "model", "card", "version"), [
    ("P009.pickle", WrittenOut, "a100-80gb", "2.2"), ("P022.pickle", ThreeTimes, "h100-sxm", "2.5")])
def test_requests_and_peaks(name: str, model: type[nn.Module], card: str, version: str) -> None:
    snapshot, requests = recorded(name)
    stats = replay(snapshot).allocator.stats
    predicted, peak = first_step(model, find_device(card), version)
    assert predicted[: len(requests)] == requests
    assert (peak.allocated_bytes, peak.reserved_bytes) == (stats.peak_allocated_bytes, stats.peak_reserved_bytes)
