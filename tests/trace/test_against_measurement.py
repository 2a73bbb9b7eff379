"""Predicted peaks against the profiler's, first and steady step, on small nets of each kind; nothing leaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from memfit.core.device import Device
from memfit.core.errors import Untraceable
from memfit.jobs import Job, run_step
from memfit.monitor.measure import job_tensors, measure_peak
from memfit.simulate import simulate
from memfit.trace import FakeWorld, fake_job, trace_job, trace_step

CPU = Device("cpu", "cpu", 8 << 30, {"float32": 1e11}, 1e10)
MIB = 2**20


def classified(model: nn.Module, inputs: torch.Tensor, make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> Job:
    def loss(net: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(net(batch[0]), batch[1])

    return Job(model, loss, (inputs, torch.randint(0, 10, (len(inputs),))), make(model.parameters()))


def perceptron() -> Job:
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 10))
    return classified(model, torch.randn(2048, 256))


def convolutional() -> Job:
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
                          nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return classified(model, torch.randn(16, 3, 64, 64), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9))


class Tied(nn.Module):
    """Embedding tied to the head, a frozen layer, a view that is written to, a module called twice, `.item()`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(2000, 128), nn.Linear(128, 2000, bias=False)
        self.head.weight = self.embed.weight
        self.inner = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        for parameter in self.inner.linear1.parameters():
            parameter.requires_grad = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.inner(self.inner(self.embed(ids)))
        if x.abs().mean().item() > 1e9:
            x = x * 0
        return self.head(x)


def tied() -> Job:
    model, ids = Tied(), torch.randint(0, 2000, (16, 64))

    def loss(net: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(net(batch["ids"]).flatten(0, 1), batch["labels"].flatten())

    return Job(model, loss, {"ids": ids, "labels": ids.clone()}, torch.optim.Adam(model.parameters()), clip_norm=1.0)


KINDS = [perceptron, convolutional, tied]


def measured(job: Job) -> list[int]:
    return [measure_peak(lambda: run_step(job, job.batch), list(job_tensors(job))) for _ in range(2)]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("micro_batches", [1, 4])
def test_predicted_is_measured(make: Callable[[], Job], micro_batches: int) -> None:
    torch.manual_seed(0)
    job = make()
    job.rules.micro_batches = micro_batches
    traces = trace_job(job)
    for trace, truth in zip((traces.first, traces.steady), measured(job), strict=True):
        guess = simulate(trace, CPU).peak.allocated_bytes
        assert abs(guess - truth) <= max(0.01 * truth, MIB / 4), (guess, truth)


@pytest.mark.parametrize("make", KINDS)
def test_tracing_changes_nothing(make: Callable[[], Job]) -> None:
    job = make()
    state = torch.get_rng_state()
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    trace_job(job)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in job.model.state_dict().items())
    assert not job.optimizer.state and all(p.grad is None for p in job.model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in job.model.modules())


def test_a_repeated_window_has_the_peak_of_each_of_its_parts() -> None:
    job = perceptron()
    world = FakeWorld()
    fake = fake_job(job, world)
    fake.rules.micro_batches = 8
    trace_step(fake, world)
    window = trace_step(fake, world)
    fake.rules.micro_batches = 2
    fake.batch = tuple(part[:512] for part in fake.batch)  # views: the whole batch stays resident
    pair = trace_step(fake, world)
    assert window.repeats and window.repeats[0].count == 7
    assert simulate(window, CPU).peak.allocated_bytes == simulate(pair, CPU).peak.allocated_bytes


def test_a_model_function_is_built_without_memory() -> None:
    class Huge(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(64)))  # 16 GiB of weights

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    job = Job(Huge, lambda net, x: net(x).mean(), torch.zeros(4, 8192), lambda p: torch.optim.AdamW(p))
    assert simulate(trace_job(job).steady, CPU).peak.allocated_bytes > 4 * 64 * 8192**2 * 4


def test_what_cannot_be_traced_is_named() -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.repeat(1, 2))

    model = Wrong()
    job = Job(model, lambda net, x: net(x).sum(), torch.randn(4, 8), torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(Untraceable) as caught:
        trace_job(job)
    message = caught.value.message
    assert ("inner" in message or "Wrong" in message) and "\n" not in message and caught.value.advice
