"""Parameters in bfloat16: small updates are not lost, what stays float32 does, and all of it goes back."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memfit.apply import apply_choices, strategy
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Choice
from memfit.jobs import Job, run_step
from memfit.monitor.measure import measure_step
from memfit.trace import FakeWorld, fake_job, trace_step
from memfit.trace.usage import usage
from memfit.train.checkpoints import Place, load_checkpoint, save_checkpoint
from memfit.train.session import Session

NAME = "low-precision-parameters"
ROUNDINGS = ("kahan", "stochastic")
CPU = Device("cpu", "cpu", 1 << 40, {"float32": 1e11}, 1e10)


class Images(nn.Module):
    """Convolution (stored channels last), BatchNorm, dropout, an LSTM, a shared Linear layer, a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1).to(memory_format=torch.channels_last)
        self.norm, self.drop, self.lstm = nn.BatchNorm2d(16), nn.Dropout(0.1), nn.LSTM(16, 16, batch_first=True)
        self.start = nn.Parameter(torch.zeros(1, 1, 16))
        self.shared, self.head = nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.drop(F.relu(self.norm(self.conv(x)))).flatten(2).transpose(1, 2)
        x = torch.cat([self.start.expand(len(x), 1, 16), x], 1)
        x = self.lstm(x.float())[0]
        return {"logits": self.head(self.shared(F.gelu(self.shared(x[:, -1]))))}


def job_of(rounding: str | None, optimizer: Any = torch.optim.AdamW, **settings: Any) -> Job:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, batch = Images(), (torch.randn(6, 3, 8, 8), torch.randint(0, 5, (6,)))
    job = Job(model, lambda m, b: F.cross_entropy(m(b[0])["logits"], b[1]), batch,
              lambda ps: optimizer(ps, **{"lr": 3e-3, **settings}))
    if rounding:
        apply_choices(job, [Choice(NAME, {"rounding": rounding})])
    return job


def train(job: Job, steps: int, seed: int | None = 1) -> list[float]:
    if seed is not None:
        torch.manual_seed(seed)
    return [float(run_step(job, job.batch).loss) for _ in range(steps)]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return set(one) == set(other) and all(equal(one[key], other[key]) for key in one)
    return one.dtype == other.dtype and torch.equal(one, other)


def states(job: Job) -> dict[str, Any]:
    return {name: dict(job.optimizer.state[p]) for name, p in job.model.named_parameters() if p in job.optimizer.state}


@pytest.mark.parametrize("trained", [0, 2])
def test_what_is_rounded_off_is_kept_to_the_last_bit(trained: int) -> None:
    job = job_of(None)
    train(job, trained)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 3.4e38, 1e-45, -1e-40, 1 + 2**-8, 1 + 2**-9, -1 - 3 * 2**-8])
    with torch.no_grad():
        job.model.head.weight.view(-1)[:10] = special
    before = copy.deepcopy(job.model.state_dict())
    undo = apply_choices(job, [Choice(NAME, {"rounding": "kahan"})])
    assert torch.equal(job.model.shared.weight.float(), before["shared.weight"].bfloat16().float())
    undo()
    assert equal(job.model.state_dict(), before)


class Ones(nn.Module):
    """A sum of ones: its gradient is one everywhere, so each step of SGD takes the rate away."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight.float().sum() * x


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_updates_too_small_for_bfloat16_add_up(rounding: str) -> None:
    rate, steps = 2e-4, 200  # bfloat16's numbers below one lie 1/256 apart: rounded to the nearest, nothing would change
    assert torch.ones((), dtype=torch.bfloat16).sub(rate).item() == 1.0
    job = Job(Ones(), lambda m, b: m(b), torch.ones(()), lambda ps: torch.optim.SGD(ps, rate))
    undo = apply_choices(job, [Choice(NAME, {"rounding": rounding})])
    train(job, steps)
    assert job.model.weight.dtype is torch.bfloat16
    undo()
    weight, expected = job.model.weight.detach(), 1 - rate * steps
    assert weight.dtype is torch.float32
    assert abs(float(weight.mean()) - expected) < 1e-3
    if rounding == "kahan":
        assert float((weight - expected).abs().max()) < 1e-5
    else:
        assert weight.unique().numel() > 2  # each element by its own draws


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_matrices_are_bfloat16_and_all_else_is_not(rounding: str) -> None:
    plain, job = job_of(None), job_of(None)
    undo = apply_choices(job, [Choice(NAME, {"rounding": rounding})])
    low = {name for name, p in job.model.named_parameters() if p.dtype is torch.bfloat16}
    assert low == {"conv.weight", "start", "shared.weight", "head.weight"}
    assert list(job.model.state_dict()) == list(plain.model.state_dict())
    assert all(one.dtype == other.dtype for one, other in zip(job.model.buffers(), plain.model.buffers(), strict=True))
    expected, losses = train(plain, 12), train(job, 12)
    assert all(abs(one - other) < 0.02 * expected[0] for one, other in zip(expected, losses, strict=True))
    for name, state in states(job).items():
        assert {key: value.dtype for key, value in state.items() if key != "step"} == {
            "exp_avg": torch.float32, "exp_avg_sq": torch.float32,
            **({"rounded_off": torch.int16} if rounding == "kahan" and name in low else {})}
    strides = {name: p.stride() for name, p in plain.model.named_parameters()}
    assert {name: p.stride() for name, p in job.model.named_parameters()} == strides
    undo()
    assert {p.dtype for p in job.model.parameters()} == {torch.float32}
    assert {name: p.stride() for name, p in job.model.named_parameters()} == strides
    assert [set(state) for state in states(job).values()] == [set(state) for state in states(plain).values()]
    assert job.rules.narrow is None and "forward" not in vars(job.model)
    train(job, 1)


def wide(optimizer: Any = torch.optim.AdamW) -> Job:
    """Parameters, gradients and states are nearly all of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(*(part for _ in range(16) for part in (nn.Linear(128, 128), nn.Tanh())))
    return Job(model, lambda m, x: m(x).square().mean(), torch.randn(4, 128), lambda ps: optimizer(ps, 1e-3))


@pytest.mark.parametrize(("rounding", "mix"), [
    ("kahan", ()), ("stochastic", ("step-in-backward",)), ("kahan", ("optimizer-8bit", "fused-step")),
    ("stochastic", ("micro-batches", "offload-optimizer"))])
def test_the_peak_is_as_predicted(rounding: str, mix: tuple[str, ...]) -> None:
    settings: dict[str, dict[str, Any]] = {"micro-batches": {"count": 2}, "offload-optimizer": {"place": "disk"}}
    choices = [Choice(NAME, {"rounding": rounding}), *(Choice(name, settings.get(name, {})) for name in mix)]
    world, job = FakeWorld(), wide()
    fake = fake_job(wide(), world)
    trace_step(fake, world)
    whole = usage(trace_step(fake, world)).peak_bytes
    apply_choices(fake, choices), apply_choices(job, choices)
    trace_step(fake, world), run_step(job, job.batch)
    predicted = usage(trace_step(fake, world)).peak_bytes
    measured = measure_step(job, lambda: run_step(job, job.batch))
    assert abs(measured - predicted) <= 0.02 * measured
    assert predicted < (0.92 if rounding == "kahan" else 0.8) * whole


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_in_backward_it_gives_the_same_bits(rounding: str) -> None:
    together, apart = job_of(rounding), job_of(None)
    apply_choices(apart, [Choice(NAME, {"rounding": rounding}), Choice("step-in-backward")])
    assert train(together, 3) == train(apart, 3)
    assert equal(together.model.state_dict(), apart.model.state_dict()) and equal(states(together), states(apart))


def test_clipping_windows_and_gradients_that_stay() -> None:
    job = wide(torch.optim.SGD)
    job.clip_norm, job.zero_grad = 1e-6, "before_forward"
    apply_choices(job, [Choice(NAME, {"rounding": "stochastic"}), Choice("micro-batches", {"count": 2})])
    before = job.model[0].weight.detach().float()
    first = run_step(job, job.batch)
    assert float(first.grad_norm) > 1e-6
    total = sum(float(p.grad.float().norm()) ** 2 for p in job.model.parameters())
    assert total**0.5 == pytest.approx(1e-6, rel=0.02)
    assert job.model[0].weight.grad.dtype is torch.bfloat16
    moved = float((job.model[0].weight.detach().float() - before).sum().abs())
    assert moved < 1  # a rate of 1e-3 on a norm of 1e-6: rounded up or down, but rarely anywhere


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_checkpoint_goes_on_bit_for_bit(rounding: str, tmp_path: Path) -> None:
    choices = [Choice(NAME, {"rounding": rounding})]
    first, second = job_of(rounding), job_of(rounding)
    train(first, 3)
    train(second, 1, seed=5)
    saved = save_checkpoint(tmp_path, first, Place(3), choices)
    expected = train(first, 2, seed=None)
    load_checkpoint(saved, second, choices)
    assert train(second, 2, seed=None) == expected
    assert equal(first.model.state_dict(), second.model.state_dict()) and equal(states(first), states(second))


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_state_dicts_of_torch_are_taken(rounding: str) -> None:
    job = job_of(rounding)
    train(job, 2)
    weights, optimizer = copy.deepcopy(job.model.state_dict()), copy.deepcopy(job.optimizer.state_dict())
    expected = train(job, 2)
    job.model.load_state_dict(weights)
    job.optimizer.load_state_dict(optimizer)  # torch casts what floats to the parameter's dtype
    assert all(abs(one - other) < 0.01 for one, other in zip(expected, train(job, 2), strict=True))
    assert job.optimizer.state[job.model.head.weight]["exp_avg"].dtype is torch.float32


def test_the_model_is_called_evaluated_copied_and_pickled() -> None:
    job = job_of(None)
    seen: list[torch.dtype] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        logits = model(job.batch[0])["logits"]
        seen.append(logits.dtype)
        return {"mean": float(logits.numpy().mean())}

    job.evaluate = evaluate
    with Session(job, [Choice(NAME, {"rounding": "stochastic"})]) as session:
        session.step()
        assert session.notes == []
        first = session.evaluate()
        assert seen == [torch.float32]
        for other in (pickle.loads(pickle.dumps(job.model)), copy.deepcopy(job.model)):
            assert isinstance(other, Images) and equal(other.state_dict(), job.model.state_dict())
            job.loss(other, job.batch).backward()
            assert other.head.weight.grad.dtype is torch.bfloat16
    assert abs(session.evaluate()["mean"] - first["mean"]) < 0.05


@pytest.mark.parametrize(("job", "reason"), [
    (lambda: Job(nn.Linear(4, 4).bfloat16(), F.mse_loss, torch.ones(1), torch.optim.SGD), "no float32 parameter"),
    (lambda: Job(nn.Embedding(4, 4, sparse=True), F.mse_loss, torch.ones(1), torch.optim.SGD), "sparse"),
    (lambda: Job(nn.Linear(4, 4), F.mse_loss, torch.ones(1), torch.optim.LBFGS), "LBFGS")])
def test_what_it_cannot_serve_is_said(job: Any, reason: str) -> None:
    assert reason in str(strategy(NAME).excluded(job(), CPU))
    with pytest.raises(UsageError, match=reason):
        apply_choices(job(), [Choice(NAME, {"rounding": "kahan"})])


def test_settings() -> None:
    with pytest.raises(UsageError, match="rounding is 'nearest'"):
        apply_choices(wide(), [Choice(NAME, {"rounding": "nearest"})])
    job = wide()
    assert strategy(NAME).fidelity(job, {"rounding": "kahan"}) is Fidelity.REDUCED
