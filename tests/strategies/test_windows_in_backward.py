"""The optimizer in backward over whole windows: accumulation, clipping by the global norm, and what a failure leaves."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from matrix import ROWS, Row, mixed_job
from strategy_checks import check, outcome
from torch import nn
from torch.utils.checkpoint import checkpoint

from memfit.apply import apply_choices, conflict, plan_code, plan_fidelity
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Choice
from memfit.jobs import Job, run_step
from memfit.monitor.measure import measure_step
from memfit.simulate import simulate
from memfit.strategies.exact.step_in_backward import STRATEGY
from memfit.trace import FakeWorld, fake_job, trace_step
from memfit.train import Session

CPU = Device("cpu", "cpu", 1 << 40, {"float32": 1e11}, 1e10)
IN_BACKWARD, TWO_PASS = Choice("step-in-backward"), Choice("step-in-backward", {"clipping": "two-pass"})
PREVIOUS = Choice("step-in-backward", {"clipping": "previous"})
FOUR = Choice("micro-batches", {"count": 4})
OTHERS = [pytest.param(row, marks=[pytest.mark.slow] if row.name == "compile" else [])
          for row in ROWS if conflict([row.choice, TWO_PASS]) is None and row.name not in (FOUR.name, TWO_PASS.name)]


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("row", [None, *OTHERS], ids=lambda row: row.name if row else "alone")
def test_windows_are_those_of_plain_accumulation_and_clipping(row: Row | None, parts: int) -> None:
    """Three steps of a model with dropout, BatchNorm, tied weights, a frozen part and a block called twice, two parameter
    groups and a scheduler, with every strategy: losses, gradients before clipping, parameters, states and buffers by
    `torch.equal` (where parameters are of several dtypes, to the tolerance of `reordered`)."""
    plain, job = mixed_job(), mixed_job()
    plain.clip_norm = job.clip_norm = 0.05
    others = [*([row.choice] if row else []), *([FOUR] if parts > 1 else [])]
    apply_choices(plain, others)
    apply_choices(job, [*others, TWO_PASS])
    fidelity = STRATEGY.fidelity(job, {})
    assert fidelity is (Fidelity.REORDERED if row and row.name == "low-precision-parameters" else Fidelity.BITWISE)
    check(outcome(plain), outcome(job), fidelity)
    torch.manual_seed(0)
    ours = run_step(job, job.batch).grad_norm
    torch.manual_seed(0)
    theirs = run_step(plain, plain.batch).grad_norm
    assert ours is not None and theirs is not None and ours > 0.05  # it did clip
    torch.testing.assert_close(ours, theirs, rtol=0.0 if fidelity is Fidelity.BITWISE else 1e-4, atol=0.0)


def test_the_norm_of_the_window_before_clips_the_next_where_that_is_asked_for() -> None:
    plain, job = small_job(clip_norm=0.1), small_job(clip_norm=0.1)
    undo = apply_choices(job, [PREVIOUS])
    assert plan_fidelity(job, [PREVIOUS]) is Fidelity.ADAPTED
    first = run_step(plain, plain.batch)
    assert first.grad_norm is not None
    assert torch.equal(run_step(job, job.batch).grad_norm or torch.tensor(0.0), first.grad_norm)
    same(plain, job)
    before = [p.detach().clone() for p in job.model.parameters()]
    gradients = gradients_of(plain, plain.batch * 3)
    norm = run_step(job, job.batch * 3).grad_norm
    assert norm is not None and torch.equal(norm, nn.utils.get_total_norm(gradients)) and norm > 2 * first.grad_norm
    scale = 0.1 / (first.grad_norm + 1e-6)
    for p, was, gradient in zip(job.model.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(p, was - 0.5 * scale * gradient, rtol=1e-6, atol=1e-7)
    undo()
    assert job.rules.release is None


def test_the_previous_norm_is_kept_with_the_run() -> None:
    one, other = small_job(clip_norm=0.1), small_job(clip_norm=0.1)
    apply_choices(one, [PREVIOUS, FOUR]), apply_choices(other, [PREVIOUS, FOUR])
    run_step(one, one.batch)
    other.model.load_state_dict(one.model.state_dict())
    other.rules.load(copy.deepcopy(one.rules.state()))
    run_step(one, one.batch * 3), run_step(other, other.batch * 3)
    same(one, other)


class Branching(nn.Module):
    """Which of two layers is used depends on the part; a third is used by all, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large, self.shared = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branch = self.large if float(x.detach().abs().mean()) > 10 else self.small
        return self.shared(branch(self.shared(x)))


@pytest.mark.parametrize("clip_norm", [None, 0.01])
@pytest.mark.parametrize("choice", [IN_BACKWARD, PREVIOUS])
def test_a_parameter_without_a_gradient_in_the_last_part_is_stepped_too(choice: Choice, clip_norm: float | None) -> None:
    """The last part counts for nothing, the one before it does not reach `large`."""
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    batch[:2] *= 100
    plain, job = (branching_job(batch, clip_norm) for _ in range(2))
    apply_choices(plain, [FOUR]), apply_choices(job, [FOUR, choice])
    for _ in range(1 if choice is PREVIOUS else 3):
        ours, theirs = run_step(job, batch), run_step(plain, batch)
        assert ours.left_out == theirs.left_out == 1 and torch.equal(ours.loss, theirs.loss)
    same(plain, job)
    assert not torch.equal(job.model.large.weight, branching_job(batch, None).model.large.weight)


def test_one_counted_part_of_several_takes_two_passes() -> None:
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    plain, job = (branching_job(batch, 0.01) for _ in range(2))
    for one in (plain, job):
        one.weight = lambda part: float(part is not None and torch.equal(part[:1], batch[2:3]))
    apply_choices(plain, [FOUR]), apply_choices(job, [FOUR, TWO_PASS])
    phases: list[str] = []
    run_step(job, batch, on_phase=lambda name, index: phases.append(f"{name} {index}")), run_step(plain, batch)
    assert phases == ["forward 1", "backward 1"] * 2 + ["optimizer 3"]
    same(plain, job)


def test_parameters_that_train_later_or_are_not_the_optimizers_are_as_in_plain() -> None:
    def make() -> Job:
        job = small_job(clip_norm=0.05)
        job.model[0].bias.requires_grad_(False)
        job.model[2].bias.requires_grad_(True)
        held = [p for p in job.model.parameters() if p is not job.model[2].bias]
        return Job(job.model, job.loss, job.batch, torch.optim.AdamW(held, lr=0.01), clip_norm=0.05)

    plain, job = make(), make()
    apply_choices(job, [TWO_PASS])
    for one in (plain, job):
        run_step(one, one.batch)
        one.model[0].bias.requires_grad_(True)
        run_step(one, one.batch), run_step(one, one.batch)
    same(plain, job)
    assert torch.equal(plain.model[2].bias.grad, job.model[2].bias.grad)  # nobody's, so it adds up over the steps


class SharedInReentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.head(x)
        for _ in range(2):
            x = checkpoint(self.inner, x, use_reentrant=True)  # type: ignore[assignment]
        return x


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_gradients_that_come_in_pieces_are_refused_also_when_planning(clip_norm: float | None) -> None:
    job = Job(SharedInReentrant(), square, torch.randn(3, 4), torch.optim.SGD, clip_norm=clip_norm)
    world = FakeWorld()
    fake = fake_job(job, world)
    for one, step in ((job, lambda: run_step(job, job.batch)), (fake, lambda: trace_step(fake, world))):
        undo = apply_choices(one, [IN_BACKWARD])
        with pytest.raises(UsageError, match=r"reaches inner\.\w+ several times"):
            step()
        undo()


class Failing(nn.Module):
    """Passes on what it gets; raises in the given backward."""

    def __init__(self) -> None:
        super().__init__()
        self.backwards, self.fail_at = 0, -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.register_hook(self._count)
        return x * 1.0

    def _count(self, gradient: torch.Tensor) -> None:
        self.backwards += 1
        if self.backwards == self.fail_at:
            raise RuntimeError("failed on purpose")


def failing_job(clip_norm: float | None) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), Failing(), nn.Dropout(0.5), nn.Linear(6, 6))
    return Job(model, square, torch.randn(8, 6), lambda ps: torch.optim.AdamW(ps, lr=0.1), clip_norm=clip_norm)


def test_a_failure_while_the_norm_is_taken_has_not_happened() -> None:
    plain, job = failing_job(0.1), failing_job(0.1)
    job.model[2].fail_at = 3  # the first pass of the second step
    with Session(plain, profile_peaks=False) as one, Session(job, [TWO_PASS], profile_peaks=False) as other:
        torch.manual_seed(1)
        one.step(), one.step()
        torch.manual_seed(1)
        other.step()
        with pytest.raises(UsageError, match="on purpose") as failure:
            other.step()
        assert "stepped already" not in failure.value.message
        assert all(p.grad is None for p in job.model.parameters())
        other.step()
    same(plain, job)
    assert all(torch.equal(a, b) for a, b in zip(plain.model.buffers(), job.model.buffers(), strict=True))


@pytest.mark.parametrize(("clip_norm", "fail_at"), [(0.1, 2), (None, 1)])
def test_a_failure_after_some_parameters_were_stepped_says_so(clip_norm: float | None, fail_at: int) -> None:
    job = failing_job(clip_norm)
    job.model[2].fail_at = fail_at
    with (Session(job, [IN_BACKWARD], profile_peaks=False) as session,
          pytest.raises(UsageError, match=r"2 parameters had been stepped already") as failure):
        session.step()
    assert "last checkpoint" in failure.value.advice


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_the_peak_is_as_predicted_and_without_the_gradients(optimizer: str, clip_norm: float | None) -> None:
    kept = [TWO_PASS] if clip_norm else [IN_BACKWARD]
    plain = peaks(optimizer, clip_norm, [])
    for choices in ([], kept, [PREVIOUS], [FOUR], [FOUR, *kept], [FOUR, PREVIOUS]):
        predicted, measured = peaks(optimizer, clip_norm, choices)
        assert abs(predicted - measured) <= 0.01 * measured, choices
        if choices == kept:
            assert measured < plain[1] - 0.75 * 8 * 256 * 256 * 4  # most of the gradients' bytes


def test_code_does_the_same_and_leaves_clipping_to_memfit() -> None:
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    batch[:2] *= 100
    plain, job = (branching_job(batch, None) for _ in range(2))
    apply_choices(plain, [FOUR])
    names: dict[str, Any] = {}
    exec(plan_code([IN_BACKWARD, FOUR], job), names)
    step = names["make_step"](job.model, job.loss, job.optimizer, job.weight)
    for _ in range(3):
        assert torch.equal(run_step(plain, batch).loss, step(batch))
    same(plain, job)
    assert all(p.grad is None for p in job.model.parameters())
    assert "for a job that clips" in plan_code([TWO_PASS], small_job(clip_norm=1.0))


def test_settings_are_checked() -> None:
    for settings in ({"clipping": "often"}, {"pass": 2}):
        with pytest.raises(UsageError, match=r"often|no setting 'pass'"):
            apply_choices(small_job(), [Choice("step-in-backward", settings)])


def square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def small_job(clip_norm: float | None = None) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))
    return Job(model, square, torch.randn(8, 6), lambda ps: torch.optim.SGD(ps, lr=0.5), clip_norm=clip_norm)


def branching_job(batch: torch.Tensor, clip_norm: float | None) -> Job:
    torch.manual_seed(0)
    return Job(Branching(), square, batch, lambda ps: torch.optim.AdamW(ps, lr=0.01), clip_norm=clip_norm,
               weight=lambda part: 0.0 if torch.equal(part, batch[-2:]) else float(len(part)))


def gradients_of(job: Job, batch: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(job.loss(job.model, batch), list(job.model.parameters())))


def same(one: Job, other: Job) -> None:
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def wide_job(optimizer: str, clip_norm: float | None) -> Job:
    torch.manual_seed(0)
    layers: list[Any] = [m for _ in range(8) for m in (nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Tanh(), nn.Dropout(0.1))]
    return Job(nn.Sequential(*layers), square, torch.randn(8, 256), getattr(torch.optim, optimizer), clip_norm=clip_norm)


def peaks(optimizer: str, clip_norm: float | None, choices: Sequence[Choice]) -> tuple[int, int]:
    """Predicted and measured bytes of a steady step."""
    job, world = wide_job(optimizer, clip_norm), FakeWorld()
    fake = fake_job(job, world)
    trace_step(fake, world)
    apply_choices(fake, choices)
    predicted = simulate(trace_step(fake, world), CPU).peak.allocated_bytes
    apply_choices(job, choices)
    run_step(job, job.batch), run_step(job, job.batch)
    return predicted, measure_step(job, lambda: run_step(job, job.batch))
