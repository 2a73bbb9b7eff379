"""Plans that were edited: what a job does not have is told by name, before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import memfit
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.files import write_atomic
from memfit.core.results import PlannedStrategy
from memfit.jobs import Job
from memfit.jobs.targets import call_target
from memfit.plan import make_plan, target
from memfit.plan.review import reviewed

CPU = Device("cpu", "cpu", 8 << 30, {"float32": 1e11}, 1e10)


def job(samples: int = 32, lr: float = 1e-3, name: str = "x", cold: bool = False) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    return Job(model, lambda net, x: net(x).square().mean(), torch.randn(samples, 16),
               torch.optim.AdamW(model.parameters(), lr=lr))


@pytest.mark.parametrize(("name", "settings", "said"), [
    ("recompute", {"tensors": ["rellu:0"]}, "this job's forward calls no rellu"),
    ("recompute", {"tensors": ["gelu:0-7"]}, "gelu:7 is no call of this job's forward"),
    ("recompute", {"tensor": ["gelu:0"]}, "recompute has no setting 'tensor'"),
    ("checkpoint", {}, "checkpoint has a setting 'modules', which is not given"),
    ("micro-batches", {"count": 64}, "count is 64, and the batch has 32 samples"),
    ("chunked-loss", {"rows": 4, "module": "0"}, "no nn.Linear of the model has 4096 outputs"),
    ("micro-batches", {"cuont": 4}, "micro-batches has no setting 'cuont'"),
])
def test_what_a_job_does_not_have(name: str, settings: dict[str, Any], said: str) -> None:
    plan = replace(make_plan(job(), budget="1GiB", device=CPU), strategies=(PlannedStrategy(name, settings, "", ""),))
    plan = replace(plan, device="cpu")
    with pytest.raises(UsageError) as raised:
        reviewed(plan, job())
    assert said in str(raised.value)


@pytest.mark.parametrize(("module", "said"), [
    ("0", "chunked-loss: no cross entropy reads what '0' gives"),
    ("2", "chunked-loss: '2' has 10 outputs, and gains nothing below 4096")])
def test_a_head_that_chunks_would_not_help(module: str, said: str) -> None:
    def made() -> Job:
        model = nn.Sequential(nn.Linear(16, 4096), nn.GELU(), nn.Linear(4096, 10))
        return Job(model, lambda net, b: nn.functional.cross_entropy(net(b[0]), b[1]),
                   (torch.randn(8, 16), torch.zeros(8, dtype=torch.long)), torch.optim.SGD(model.parameters(), lr=0.1))

    chunked = PlannedStrategy("chunked-loss", {"rows": 4, "module": module}, "", "")
    with pytest.raises(UsageError, match=said):
        reviewed(replace(make_plan(made(), budget="1GiB", device=CPU), strategies=(chunked,), device="cpu"), made())


def test_calls_that_are_made_pass() -> None:
    plan = make_plan(job(), budget="1GiB", device=CPU)
    plan = replace(plan, strategies=(PlannedStrategy("recompute", {"tensors": ["gelu:0"]}, "", ""),))
    assert reviewed(plan, job()).predicted.peak.allocated_bytes > 0


def test_points_of_a_card_lie_above_its_floor() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)) for _ in range(3)))
    made = make_plan(Job(model, lambda net, x: net(x).square().mean(), torch.randn(4096, 64),
                         torch.optim.AdamW(model.parameters())), budget="8GiB", device="rtx3060")
    assert len(made.frontier) > 2 and all(point.simulated for point in made.frontier)
    assert min(point.peak_bytes for point in made.frontier) == made.floor_bytes


def test_nothing_runs_on_a_card() -> None:
    with pytest.raises(UsageError, match="nothing runs there"):
        memfit.fit(job(), device="rtx3060")
    elsewhere = replace(make_plan(job(), budget="1GiB", device=CPU), device="rtx3060")
    with pytest.raises(UsageError, match="nothing runs there"):
        memfit.apply(elsewhere, job())
    with pytest.raises(UsageError, match="nothing runs there"):
        memfit.prove(job(), plan=elsewhere)


@pytest.mark.parametrize(("settings", "said"), [
    ({"samples": "x"}, "samples is 'x', not a whole number"), ({"samples": 2.5}, "not a whole number"),
    ({"samples": True}, "not a whole number"), ({"lr": "fast"}, "lr is 'fast', not a number"),
    ({"name": 3}, "name is 3, not a word"), ({"cold": 1}, "cold is 1, not true or false")])
def test_settings_of_another_kind(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call_target(job, settings, "here")


def test_settings_that_suit() -> None:
    assert call_target(job, {"lr": 1, "samples": 4, "name": "y", "cold": True}).batch.shape == (4, 16)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is a folder"):
        write_atomic(tmp_path, "text")


@pytest.mark.parametrize(("options", "said"), [
    ({"budget": "8G"}, "the unit G"), ({"budget": "140%"}, "more than the plain step"), ({"host_budget": "x"}, "not a size"),
    ({"device": "rtx9999"}, "rtx9999"), ({"budget": "1GiB"}, "the loss failed")])
def test_what_is_wrong_is_told_before_rates_are_measured(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any],
                                                         said: str) -> None:
    def loss(model: Any, x: Any) -> Any:
        raise ValueError("the loss failed")

    monkeypatch.setattr(target, "machine_rates", lambda: pytest.fail("measured"))
    wrong = job()
    wrong.loss = loss
    with pytest.raises((UsageError, ValueError), match=said):
        make_plan(wrong, **options)
