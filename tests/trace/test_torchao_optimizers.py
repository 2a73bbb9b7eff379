"""Optimizers that compile their own step and keep states in wrapper subclasses: a user's own, from torchao."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from memfit.core.device import Device
from memfit.core.errors import Untraceable
from memfit.jobs import Job, run_step
from memfit.monitor.measure import measure_step
from memfit.plan import estimate_job
from memfit.simulate import simulate
from memfit.trace import FakeWorld, fake_job, trace_step
from memfit.train.checkpoints import Place, load_checkpoint, save_checkpoint

torchao = pytest.importorskip("torchao.optim")
pytestmark = pytest.mark.slow  # importing torchao and compiling take seconds
CPU = Device("cpu", "cpu", 1 << 40, {"float32": 1e11}, 1e10)


def job_of(kind: str, seed: int = 0) -> Job:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256))
    return Job(model, lambda m, x: m(x).square().mean(), torch.ones(4, 256), lambda ps: getattr(torchao, kind)(ps, lr=1e-3))


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamWFp8"])
def test_the_compiled_step_is_predicted(kind: str) -> None:
    job, world, before = job_of(kind), FakeWorld(), job_of(kind)
    run_step(before, before.batch)  # compiles: Inductor tries what it wrote on small tensors
    fake = fake_job(job_of(kind), world)
    for _ in ("first", "steady"):
        seen = simulate(trace_step(fake, world), CPU)
        measured = measure_step(job, lambda: run_step(job, job.batch))
        assert abs(seen.peak.allocated_bytes - measured) <= 0.005 * measured
    elements = sum(p.numel() for p in job.model.parameters())
    assert 2 * elements < seen.at_peak.by_category["optimizer_state"] < 2.2 * elements
    world = FakeWorld()
    again = simulate(trace_step(fake_job(job, world), world), CPU)  # with its real states
    assert again.peak == seen.peak


def test_on_a_card_it_says_what_to_do() -> None:
    with pytest.raises(Untraceable, match="compiles its step") as raised:
        estimate_job(job_of("AdamW8bit"), device="rtx3060")
    assert "optimizer-8bit" in raised.value.advice


def test_a_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    first, second = job_of("AdamW8bit"), job_of("AdamW8bit", seed=1)
    with torch.compiler.set_stance("force_eager"):
        for _ in range(2):
            run_step(first, first.batch)
        load_checkpoint(save_checkpoint(tmp_path, first, Place(2), []), second, [])
        state = second.optimizer.state[second.model[0].weight]
        assert type(state["exp_avg"]).__name__ == "OptimState8bit"
        for _ in range(2):
            assert torch.equal(run_step(first, first.batch).loss, run_step(second, second.batch).loss)
