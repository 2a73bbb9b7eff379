"""Adam's moments in fewer bytes: the codes, the step, what stays as it was, and the way back."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from memfit.apply import apply_choices, strategy
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Choice
from memfit.hooks.moments import codecs, kept_float32, optimizers, tables
from memfit.jobs import Job, run_step
from memfit.monitor.measure import measure_step
from memfit.simulate import simulate
from memfit.trace import FakeWorld, fake_job, trace_step
from memfit.train.checkpoints import Place, load_checkpoint, save_checkpoint

CPU = Device("cpu", "cpu", 1 << 40, {"float32": 1e11}, 1e10)
CODED = ("optimizer-8bit", "optimizer-4bit", "optimizer-fp8", "optimizer-bf16")
FACTORED = "optimizer-factored"
ALL = (*CODED, FACTORED)


def job_of(optimizer: Any = torch.optim.AdamW, *, seed: int = 0, width: int = 96, **settings: Any) -> Job:
    """Matrices above and below 4,096 elements, one no multiple of a block, and one stored transposed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Embedding(131, width), nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, 8))
        model[1].weight = nn.Parameter(model[1].weight.detach().t().contiguous().t())
        batch = torch.randint(0, 131, (16,))
    return Job(model, lambda m, x: m(x).square().mean(), batch, lambda ps: optimizer(ps, **{"lr": 1e-2, **settings}),
               scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5))


def train(job: Job, steps: int) -> list[float]:
    return [float(run_step(job, job.batch).loss) for _ in range(steps)]


def parameters(job: Job) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in job.model.parameters()]


def states(job: Job) -> list[dict[str, torch.Tensor]]:
    return [{key: value.clone() for key, value in job.optimizer.state[p].items()} for p in job.model.parameters()]


def close(some: list[float], others: list[float], share: float) -> bool:
    """Whether losses differ by no more than a share of the first."""
    return all(abs(one - other) <= share * some[0] for one, other in zip(some, others, strict=True))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return set(one) == set(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one.dtype == other.dtype and torch.equal(one, other)


LEVELS = {"8 bit, signed": codecs.EIGHT_BIT[0], "8 bit": codecs.EIGHT_BIT[1], "4 bit, signed": codecs.FOUR_BIT[0],
          "4 bit": codecs.FOUR_BIT[1]}


@pytest.mark.parametrize("name", LEVELS)
def test_the_code_is_that_of_the_nearest_level(name: str) -> None:
    levels = LEVELS[name].levels
    table = tables.table(levels, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20_000, generator=generator) * torch.logspace(-9, 0, 20_000)
    values = torch.cat([values.clamp(-1, 1) if "signed" in name else values.abs().clamp(0, 1), table.levels])
    codes = table.encode(values)
    nearest = (values.unsqueeze(1) - table.levels).abs().amin(1)
    assert torch.equal((values - table.decode(codes)).abs(), nearest)
    assert len(levels) == len(set(levels)) == (256 if name.startswith("8") else 16)


ERRORS: dict[str, tuple[Any, float]] = {  # half the widest gap between two levels, of the largest number
    "8 bit, signed": (codecs.EIGHT_BIT[0], 0.0071), "8 bit": (codecs.EIGHT_BIT[1], 0.0036),
    "4 bit, signed": (codecs.FOUR_BIT[0], 0.12), "4 bit": (codecs.FOUR_BIT[1], 0.0564),
    "float8": (codecs.FLOAT_8[0], 0.036), "bfloat16": (codecs.B_FLOAT_16[0], 0.004)}


@pytest.mark.parametrize("name", ERRORS)
def test_a_moment_comes_back_within_the_codecs_error(name: str) -> None:
    codec, error = ERRORS[name]
    like = torch.empty(70, 97)  # 26 and a half blocks of 256
    values = torch.rand(like.shape, generator=torch.Generator().manual_seed(1)).flatten() * 3
    parts = codec.zeros(like)
    assert equal(codec.read(parts, 0, 6790), torch.zeros(6790))
    codec.write(parts, 0, 1024, values[:1024].clone(), None)
    codec.write(parts, 1024, 6790, values[1024:].clone(), None)
    back = torch.cat([codec.read(parts, 0, 512), codec.read(parts, 512, 6790)])
    assert (back - values).abs().max() <= error * 3
    assert {part: tensor.dtype for part, tensor in parts.items()} == dict(codec.dtypes)


def test_bfloat16_is_rounded_at_random_so_that_the_mean_is_right() -> None:
    codec, like = codecs.B_FLOAT_16[0], torch.empty(100_000)
    value = 1.0 + 0.3 / 128  # three tenths of the way from one bfloat16 to the next
    before = torch.random.get_rng_state()
    parts = codec.zeros(like)
    codec.write(parts, 0, 100_000, torch.full_like(like, value), optimizers._noise(like, 3)[0])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert set(parts[""].tolist()) == {1.0, 1.0 + 1 / 128}
    assert abs(float(parts[""].float().mean()) - value) < 0.02 / 128


@pytest.mark.parametrize("name", CODED)
@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_training_is_close_and_small_tensors_step_bit_for_bit(kind: str, name: str) -> None:
    plain, job = (job_of(getattr(torch.optim, kind), weight_decay=0.1, lr=1e-3) for _ in range(2))
    apply_choices(job, [Choice(name)])
    assert close(train(plain, 4), train(job, 4), 0.03 if "4bit" in name else 0.001)
    assert strategy(name).fidelity(job, {}) is Fidelity.REDUCED
    large = [state for state in states(job) if "exp_avg_codes" in state or state["exp_avg"].dtype is torch.bfloat16]
    assert len(large) == 2  # of 12,576 and 18,432 elements
    assert kept_float32(job.model, job.optimizer) == {"1.bias": 192, "3.weight": 1536, "3.bias": 8}
    one, other = job_of(), job_of()
    apply_choices(other, [Choice(name)])
    train(one, 1), train(other, 1)
    for small in (1, 3):  # from one gradient: later ones differ
        assert equal(list(one.model[small].parameters())[1], list(other.model[small].parameters())[1])


@pytest.mark.parametrize("name", ["8bit", "Fp8"])  # its 4 bit has other levels for the second moment
def test_the_same_as_torchao(name: str) -> None:
    torchao = pytest.importorskip("torchao.optim")
    ours, theirs = (job_of(kind, width=128, lr=1e-3) for kind in (torch.optim.AdamW, getattr(torchao, f"AdamW{name}")))
    theirs.model[1].weight = nn.Parameter(theirs.model[1].weight.detach().contiguous())
    apply_choices(ours, [Choice(f"optimizer-{name.lower()}")])
    with torch.compiler.set_stance("force_eager"):
        assert close(train(ours, 5), train(theirs, 5), 1e-4)
    state, known = (job.optimizer.state[job.model[1].weight] for job in (ours, theirs))
    for moment in ("exp_avg", "exp_avg_sq"):
        codes = known[moment].codes.flatten().view(torch.uint8)
        assert (state[f"{moment}_codes"].view(torch.uint8)[: len(codes)] == codes).float().mean() > 0.98
        off = (state[f"{moment}_scale"] / known[moment].scale.clamp_min(1e-30) - 1).abs()
        assert off.median() < 1e-3


@pytest.mark.parametrize("name", ALL)
def test_the_optimizer_stays_the_users_and_goes_back(name: str) -> None:
    job = job_of()
    optimizer, scheduler = job.optimizer, job.scheduler
    calls: list[str] = []
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    attributes = set(vars(optimizer))
    undo = apply_choices(job, [Choice(name)])
    later = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)  # one that is made meanwhile, by the user's own code
    assert job.optimizer is optimizer and isinstance(optimizer, torch.optim.AdamW)
    train(job, 2)
    later.step()
    assert calls == ["after"] * 2 and optimizer.param_groups[0]["lr"] == 5e-3 and scheduler.last_epoch == 2
    undo()
    assert type(optimizer) is torch.optim.AdamW and set(vars(optimizer)) - {"_opt_called"} == attributes
    for parameter in job.model.parameters():
        state = optimizer.state[parameter]
        assert set(state) == {"step", "exp_avg", "exp_avg_sq"} and int(state["step"]) == 2
        assert state["exp_avg"].shape == parameter.shape and state["exp_avg"].stride() == parameter.stride()
        assert state["exp_avg"].dtype is torch.float32
    train(job, 1)
    assert calls == ["after"] * 3


def test_factored_is_adafactor_with_adams_rate() -> None:
    job, known = job_of(weight_decay=0.1), job_of(torch.optim.Adafactor, weight_decay=0.1, eps=(None, 1.0))
    apply_choices(job, [Choice(FACTORED)])
    assert strategy(FACTORED).fidelity(job, {}) is Fidelity.ADAPTED
    assert train(job, 4) == train(known, 4)
    assert equal(parameters(job), parameters(known)) and equal(states(job), states(known))


def test_factored_moments_come_back_as_their_factors_tell() -> None:
    plain, job = job_of(), job_of()
    train(plain, 2), train(job, 2)
    apply_choices(job, [Choice(FACTORED)])()
    for one, other in zip(states(plain), states(job), strict=True):
        square, back = one["exp_avg_sq"], other["exp_avg_sq"]
        for dim in range(square.dim()) if square.dim() > 1 else ():
            assert torch.allclose(square.mean(dim), back.mean(dim), rtol=1e-4, atol=1e-12)
        assert square.dim() > 1 or torch.allclose(square, back, rtol=1e-5)
        assert not other["exp_avg"].any()


@pytest.mark.parametrize("name", CODED)
def test_training_that_has_begun_goes_on(name: str) -> None:
    plain, job = job_of(lr=1e-3), job_of(lr=1e-3)
    expected, begun = train(plain, 6), train(job, 2)
    undo = apply_choices(job, [Choice(name)])
    begun += train(job, 2)
    undo()
    assert close(expected, begun + train(job, 2), 0.03 if "4bit" in name else 0.001)


@pytest.mark.parametrize("name", ALL)
def test_a_checkpoint_keeps_the_states_small_and_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    choices = [Choice(name)]
    first, second = job_of(), job_of(seed=1)
    for job in (first, second):
        apply_choices(job, choices)
    train(first, 3)
    saved = save_checkpoint(tmp_path, first, Place(3), choices)
    second.batch = first.batch
    load_checkpoint(saved, second, choices)
    assert equal(states(second), states(first))
    assert train(second, 3) == train(first, 3)
    assert equal(parameters(second), parameters(first)) and equal(states(second), states(first))
    nbytes = sum(tensor.nbytes for tensor in first.optimizer.state[first.model[0].weight].values())
    assert nbytes <= 12_576 * (4.01 if "bf16" in name else 2.1)


@pytest.mark.parametrize("name", ALL)
def test_state_dicts_copies_and_pickles_go_on_bit_for_bit(name: str) -> None:
    job = job_of()
    apply_choices(job, [Choice(name)])
    train(job, 2)
    saved, weights = copy.deepcopy(job.optimizer.state_dict()), copy.deepcopy(job.model.state_dict())
    both = copy.deepcopy((job.model, job.optimizer)), pickle.loads(pickle.dumps((job.model, job.optimizer)))
    expected = train(job, 2)
    for model, optimizer in both:
        other = Job(model, job.loss, job.batch, optimizer, scheduler=None)
        losses = [float(run_step(other, other.batch).loss)]
        assert losses == expected[:1]
    job.model.load_state_dict(weights)
    job.optimizer.load_state_dict(saved)  # torch casts what floats to the parameter's dtype
    assert train(job, 1) == expected[:1]


@pytest.mark.parametrize("name", ALL)
def test_a_plain_state_dict_is_taken(name: str) -> None:
    plain, job = job_of(), job_of()
    train(plain, 2), train(job, 2)
    apply_choices(job, [Choice(name)])
    expected = train(job, 1)
    job.model.load_state_dict(plain.model.state_dict())
    job.optimizer.load_state_dict(plain.optimizer.state_dict())
    assert train(job, 1) == expected


@pytest.mark.parametrize("name", ALL)
def test_in_backward_it_gives_the_same_bits(name: str) -> None:
    together, apart = job_of(), job_of()
    apply_choices(together, [Choice(name)])
    apply_choices(apart, [Choice("step-in-backward"), Choice(name)])
    assert train(together, 3) == train(apart, 3)
    assert equal(parameters(together), parameters(apart)) and equal(states(together), states(apart))


@pytest.mark.parametrize(("optimizer", "settings", "reason"), [
    (torch.optim.SGD, {}, "the optimizer is SGD"), (torch.optim.NAdam, {}, "NAdam"),
    (torch.optim.AdamW, {"amsgrad": True}, "amsgrad"), (torch.optim.Adam, {"capturable": True}, "capturable"),
    (torch.optim.Adam, {"differentiable": True}, "differentiable"), (torch.optim.AdamW, {"width": 8}, "fewer than 4096")])
def test_what_it_cannot_serve_is_said(optimizer: Any, settings: dict[str, Any], reason: str) -> None:
    job = job_of(optimizer, **settings)
    assert reason in str(strategy("optimizer-8bit").excluded(job, CPU))
    with pytest.raises(UsageError, match="optimizer-8bit: "):
        apply_choices(job, [Choice("optimizer-8bit")])
    assert type(job.optimizer) is optimizer


def wide() -> Job:
    """Parameters, gradients and states are nearly all of it; one parameter goes in several stretches."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(4000, 128), *(nn.Linear(128 if n == 0 else 512, 512) for n in range(4)))
    return Job(model, lambda m, x: m(x).square().mean(), torch.arange(8), lambda ps: torch.optim.AdamW(ps, lr=1e-3))


@pytest.mark.parametrize("others", [[], ["step-in-backward"], ["micro-batches"]], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_first_and_steady_step_are_predicted(name: str, others: list[str]) -> None:
    choices = [Choice(name), *(Choice(other, {"count": 2} if "micro" in other else {}) for other in others)]
    world = FakeWorld()
    fake = fake_job(wide(), world)
    plain = simulate(trace_step(fake, world), CPU).peak.allocated_bytes
    undo = apply_choices(fake, choices)  # as the search does it: after a plain step
    after_plain = simulate(trace_step(fake, world), CPU).peak.allocated_bytes
    undo()
    world = FakeWorld()
    fake, job = fake_job(wide(), world), wide()
    job.weight = fake.weight = lambda _: 1.0
    apply_choices(fake, choices)
    tables.table.cache_clear()
    apply_choices(job, choices)  # makes the tables: none is made in a step
    for _ in ("first", "steady"):
        predicted = simulate(trace_step(fake, world), CPU).peak.allocated_bytes
        measured = measure_step(job, lambda: run_step(job, job.batch))
        assert abs(predicted - measured) <= 0.005 * measured
    assert after_plain == predicted < 0.75 * plain
