"""Checkpointing: what is worth it, what must not be, and that frozen inputs, caches and buffers are right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from memfit.apply import apply_choices
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.strategy import Choice
from memfit.core.trace import Trace
from memfit.jobs import Job, run_step
from memfit.simulate import simulate
from memfit.strategies.exact.checkpoint import STRATEGY, candidates, unfit
from memfit.trace import FakeWorld, fake_job, trace_step

CPU = Device("cpu", "cpu", 1 << 40, {"float32": 1e11}, 1e10)


def square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=0.1)


def job_of(model: nn.Module, batch: torch.Tensor) -> Job:
    return Job(model, square, batch, sgd)


def traced(job: Job, modules: list[str] | None = None) -> Trace:
    world = FakeWorld()
    fake = fake_job(job, world)
    trace_step(fake, world)
    if modules is not None:
        apply_choices(fake, [Choice("checkpoint", {"modules": modules})])
    return trace_step(fake, world)


def peak(trace: Trace) -> int:
    return simulate(trace, CPU).peak.allocated_bytes


class Tower(nn.Module):
    """Six times linear and tanh, in two halves."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(width, width), nn.Tanh())])
                                   for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def test_segments_that_save_nothing_are_never_candidates() -> None:
    job = job_of(Tower(), torch.randn(2048, 64))
    plain = traced(job)
    found = [segment.path for segment in candidates(job, plain)]
    assert found == ["first", "second"]
    assert unfit(job, plain)["first.0"] == "saves nothing"
    linears = [path for path, m in job.model.named_modules() if isinstance(m, nn.Linear)]
    assert peak(traced(job, linears)) >= peak(plain)
    assert peak(traced(job, found)) < 0.75 * peak(plain)
    assert all("first" in choice["modules"] for choice in STRATEGY.choices(job, plain, CPU))


class Frozen(nn.Module):
    """A frozen embedding before checkpointed blocks; a head, an adapter inside, or neither."""

    def __init__(self, head: bool, adapter: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8).requires_grad_(False)
        self.block = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        if adapter:
            self.block[0].requires_grad_(False)
        self.head = nn.Linear(8, 8) if head else nn.Identity()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embed(ids)))


@pytest.mark.parametrize(("head", "adapter"), [(True, False), (False, False), (True, True), (False, True)])
def test_frozen_inputs_keep_every_gradient(head: bool, adapter: bool) -> None:
    gradients: list[dict[str, torch.Tensor]] = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        job = job_of(Frozen(head, adapter), torch.arange(10).reshape(2, 5))
        if checkpointed:
            apply_choices(job, [Choice("checkpoint", {"modules": ["embed", "block"]})])
        seen = job.model
        run_step(job, job.batch, on_gradients=lambda seen=seen: gradients.append(
            {name: p.grad.clone() for name, p in seen.named_parameters() if p.grad is not None}))
    assert set(gradients[0]) == set(gradients[1]) != set()
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name])


class Counting(nn.Module):
    """Normalises by a step count that it keeps in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.inner(x) / self.count


class WithCounting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counting, self.plain = Counting(), nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(self.counting(x))


def test_modules_that_move_their_own_buffers_are_left_out_and_refused() -> None:
    job = job_of(WithCounting(), torch.randn(256, 8))
    assert unfit(job, traced(job))["counting"] == "changes its buffer counting.count"
    apply_choices(job, [Choice("checkpoint", {"modules": ["counting"]})])
    with pytest.raises(UsageError, match=r"counting.*changes the buffer count"):
        run_step(job, job.batch)


def test_spectral_norm_is_refused_rather_than_wrong() -> None:
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Tanh())
    job = job_of(nn.Sequential(model, nn.Linear(8, 1)), torch.randn(4, 8))
    apply_choices(job, [Choice("checkpoint", {"modules": ["0"]})])
    with pytest.raises(UsageError, match="changes the buffer"):
        run_step(job, job.batch)


@dataclass
class Out:
    x: torch.Tensor
    mask: torch.Tensor


class Odd(nn.Module):
    """Keyword arguments named like torch's own, a dataclass out, called twice under autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, *, debug: torch.Tensor, early_stop: bool = False) -> Out:
        return Out(torch.tanh(self.inner(x)) * debug, debug)


class CallsOddTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.odd = Odd()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            first = self.odd(x, debug=torch.ones(8), early_stop=True)
            return self.odd(first.x, debug=first.mask).x.float()


def test_keywords_dataclasses_second_calls_and_autocast() -> None:
    losses = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        job = job_of(CallsOddTwice(), torch.randn(4, 8))
        if checkpointed:
            apply_choices(job, [Choice("checkpoint", {"modules": ["odd"]})])
        losses.append([run_step(job, job.batch).loss for _ in range(3)])
    assert losses[0] == losses[1]


def test_a_checkpoint_inside_a_checkpoint_is_bitwise() -> None:
    outcomes = []
    for modules in ([], ["0"], ["0", "0.1", "0.1.0"]):
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2)), nn.Linear(16, 8))
        outer = nn.Sequential(nn.BatchNorm1d(8), inner, nn.Tanh())
        job = job_of(nn.Sequential(outer, nn.Linear(8, 1)), torch.randn(9, 8))
        apply_choices(job, [Choice("checkpoint", {"modules": modules})])
        torch.manual_seed(1)
        losses = [run_step(job, job.batch).loss for _ in range(3)]
        outcomes.append([*losses, *job.model.state_dict().values()])
    for one, two, three in zip(*outcomes, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def gpt(use_cache: Any) -> Job:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=64, n_positions=16, bos_token_id=0,
                                     eos_token_id=0)
    ids = torch.randint(0, 64, (2, 8))
    more = {} if use_cache is None else {"use_cache": use_cache}
    return Job(transformers.GPT2LMHeadModel(config), lambda m, x: m(input_ids=x, labels=x, **more).loss, ids, sgd)


def test_a_key_value_cache_is_switched_off_and_on_again() -> None:
    plain, job = gpt(None), gpt(None)
    undo = apply_choices(job, [Choice("checkpoint", {"modules": ["transformer.h.0", "transformer.h.1"]})])
    for _ in range(2):
        torch.manual_seed(1)
        expected = run_step(plain, plain.batch).loss
        torch.manual_seed(1)
        assert torch.equal(run_step(job, job.batch).loss, expected)
    undo()
    assert job.model.config.use_cache is True


def test_a_cache_that_the_loss_asks_for_is_refused_with_advice() -> None:
    job = gpt(True)
    apply_choices(job, [Choice("checkpoint", {"modules": ["transformer.h.1"]})])
    with pytest.raises(UsageError) as refused:
        run_step(job, job.batch)
    assert "transformer.h.1" in refused.value.message
    assert "use_cache=False" in refused.value.advice


@pytest.mark.parametrize("modules", [None, "first", ["nowhere"], [""]])
def test_bad_settings_are_one_line(modules: Any) -> None:
    job = job_of(Tower(4), torch.randn(2, 4))
    with pytest.raises(UsageError, match="checkpoint: "):
        apply_choices(job, [Choice("checkpoint", {"modules": modules})])
