"""Loss scaling: once a window, skipped steps, failures, and what a trace sees of it."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from memfit.apply import apply_choices
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.strategy import Choice
from memfit.hardware import find_device
from memfit.jobs import Job, run_step
from memfit.monitor.measure import measure_step
from memfit.simulate import simulate
from memfit.strategies.lossy.autocast import STRATEGY
from memfit.trace import FakeWorld, fake_job, trace_step
from memfit.train import Session
from memfit.train.checkpoints import Place, load_checkpoint, save_checkpoint

HALF = Choice("autocast", {"dtype": "float16"})


def square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).float().square().mean()


def job_of(width: int = 16, samples: int = 8, scale: float | None = None, **optimizer: object) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width))
    job = Job(model, square, torch.randn(samples, width), lambda p: torch.optim.AdamW(p, lr=0.01, **optimizer),  # type: ignore[arg-type]
              clip_norm=0.5, scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (n + 1)))
    job.initial_scale = scale  # type: ignore[attr-defined]
    return job


def session_of(job: Job, *choices: Choice) -> Session:
    session = Session(job, [HALF, *choices], profile_peaks=False)
    scale = job.initial_scale  # type: ignore[attr-defined]
    if scale is not None:
        assert job.rules.scaling is not None
        job.rules.scaling.load({**job.rules.scaling.state(), "scale": scale})
    return session


def by_hand(job: Job, count: int, steps: int) -> list[float]:
    """What the documentation of torch.amp does with accumulation, clipping and a scheduler."""
    scaler, scheduler, losses = torch.amp.GradScaler("cpu"), job.scheduler, []
    for _ in range(steps):
        total = 0.0
        for part in job.batch.chunk(count):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = job.loss(job.model, part) / count
            scaler.scale(loss).backward()
            total += float(loss.detach())
        scaler.unscale_(job.optimizer)
        nn.utils.clip_grad_norm_(job.model.parameters(), 0.5)
        before = scaler.get_scale()
        scaler.step(job.optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            scheduler.step()
        job.optimizer.zero_grad()
        losses.append(total)
    return losses


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("fused", [False, True])
def test_a_window_is_unscaled_clipped_stepped_and_updated_once(count: int, fused: bool) -> None:
    plain, job = job_of(fused=fused), job_of(fused=fused)
    torch.manual_seed(1)
    expected = by_hand(plain, count, 4)
    torch.manual_seed(1)
    with session_of(job, Choice("micro-batches", {"count": count})) as session:
        kind = torch.amp.GradScaler
        with (mock.patch.object(kind, "unscale_", autospec=True, side_effect=kind.unscale_) as unscaled,
              mock.patch.object(kind, "update", autospec=True, side_effect=kind.update) as updated):
            losses = [session.step().loss for _ in range(4)]
        assert unscaled.call_count == updated.call_count == 4
    assert losses == pytest.approx(expected, rel=1e-6)
    for one, two in zip(plain.model.parameters(), job.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert plain.optimizer.param_groups[0]["lr"] == job.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / 5)


@pytest.mark.parametrize("fused", [False, True])
def test_skipped_steps_change_nothing_but_the_scale(fused: bool) -> None:
    job = job_of(scale=2.0**60, fused=fused)
    with session_of(job, Choice("micro-batches", {"count": 2})) as session:
        before = [p.detach().clone() for p in job.model.parameters()]
        outs = [session.step() for _ in range(3)]
        assert all(out.skipped and 0 < out.loss < 10 for out in outs)
        assert all(torch.equal(a, b) for a, b in zip(before, job.model.parameters(), strict=True))
        assert job.optimizer.param_groups[0]["lr"] == 0.01 and job.rules.scaling is not None
        assert job.rules.scaling.state()["scale"] == 2.0**57
        assert len([note for note in session.notes if "not finite" in note]) == 1
        while session.step().skipped:
            pass
        assert job.optimizer.param_groups[0]["lr"] == 0.005
        assert not torch.equal(before[0], job.model[0].weight)


def test_a_step_that_failed_leaves_the_scale_and_can_be_done_again() -> None:
    plain, job = job_of(scale=2.0**60), job_of(scale=2.0**60)
    with session_of(plain) as one, session_of(job) as other:
        torch.manual_seed(2)
        one.step(), one.step()
        torch.manual_seed(2)
        other.step()

        def fail() -> None:
            raise RuntimeError("on purpose")

        with pytest.raises(UsageError, match="on purpose"):
            other.step(on_gradients=fail)  # after the gradients were unscaled
        other.step()
        assert plain.rules.state() == job.rules.state() == {"scaling": one.job.rules.state()["scaling"]}


def test_the_scale_is_saved_and_gone_on_with(tmp_path: Path) -> None:
    plain, first, second = (job_of(scale=2.0**40) for _ in range(3))
    with session_of(plain) as session:
        torch.manual_seed(3)
        for _ in range(30):
            session.step()
    with session_of(first) as session:
        torch.manual_seed(3)
        for _ in range(9):
            session.step()
        saved = save_checkpoint(tmp_path, first, Place(9), session.choices)
    second.initial_scale = None  # type: ignore[attr-defined]
    with session_of(second) as session:
        load_checkpoint(saved, second, session.choices)
        assert second.rules.state()["scaling"]["scale"] == 2.0**31
        for _ in range(21):
            session.step()
    for one, two in zip(plain.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("count", [1, 4])
def test_a_trace_holds_a_real_step_and_predicts_the_peak(count: int) -> None:
    """With a scale that skips the first updates a run looks as if it fitted; the states come later."""
    job = job_of(width=512, samples=8, scale=2.0**60)
    choices = [HALF, Choice("micro-batches", {"count": count})]
    world = FakeWorld()
    fake = fake_job(job, world)
    apply_choices(fake, choices)
    first, steady = (trace_step(fake, world) for _ in range(2))
    assert sum(op.name == "_amp_update_scale_" for op in steady.ops) == 1
    states = 2 * sum(p.nbytes for p in job.model.parameters())
    assert sum(s.nbytes for s in first.storages if s.category == "optimizer_state" and s.phase == "optimizer") >= states
    with session_of(job, choices[1]) as session:
        while session.step().skipped:
            assert not job.optimizer.state
        session.step()
        measured = measure_step(job, session.step)
    cpu = Device("cpu", "cpu", 1 << 40, {"float32": 1e11}, 1e10)
    assert abs(simulate(steady, cpu).peak.allocated_bytes - measured) <= 0.02 * measured


def test_float16_is_offered_where_bfloat16_is_slow_only() -> None:
    job, trace = job_of(), trace_step(fake_job(job_of(), world := FakeWorld()), world)
    offered = {name: [one["dtype"] for one in STRATEGY.choices(job, trace, find_device(name))]
               for name in ("v100-16gb", "t4", "rtx3060", "a100-40gb", "gtx1070")}
    assert offered == {"v100-16gb": ["bfloat16", "float16"], "t4": ["bfloat16", "float16"], "rtx3060": ["bfloat16"],
                       "a100-40gb": ["bfloat16"], "gtx1070": ["bfloat16", "float16"]}


def test_it_cannot_be_with_the_step_in_backward() -> None:
    job = job_of()
    with pytest.raises(UsageError, match=r"gradient lifetime.*once all gradients are there"):
        apply_choices(job, [HALF, Choice("step-in-backward")])
    assert job.rules.scaling is None and job.rules.release is None and not job.rules.contexts
    apply_choices(job, [Choice("autocast", {"dtype": "bfloat16"}), Choice("step-in-backward")])
    run_step(job, job.batch)
