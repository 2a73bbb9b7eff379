"""What a plan promises: it fits its own simulation, a larger budget is never slower, the same input gives the same plan."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.plan import make_plan
from memfit.plan.explore import Candidate, Explorer
from memfit.plan.find import find

CPU = Device("cpu", "cpu", 8 << 30, {"float32": 1e11, "bfloat16": 2e11}, 1e10, overhead_s=2e-6)


class Block(nn.Module):
    def __init__(self, width: int, norm: str, drop: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width) if norm == "batch" else nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.narrow(torch.nn.functional.gelu(self.wide(self.norm(x)))))


def job(width: int = 32, depth: int = 3, samples: int = 64, norm: str = "layer", drop: float = 0.0) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(width, norm, drop) for _ in range(depth)], nn.Linear(width, 10))
    batch = (torch.randn(samples, width), torch.randint(0, 10, (samples,)))

    def loss(net: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(net(data[0]), data[1])

    return Job(model, loss, batch, torch.optim.AdamW(model.parameters()))


JOBS = st.builds(
    job, width=st.sampled_from([16, 32]), depth=st.integers(1, 4), samples=st.sampled_from([256, 1024]),
    norm=st.sampled_from(["layer", "batch"]), drop=st.sampled_from([0.0, 0.1]))


def predicted(explorer: Explorer, plan: object) -> Candidate:
    candidate = explorer.candidate([Choice(s.name, s.settings) for s in plan.strategies])  # type: ignore[attr-defined]
    assert isinstance(candidate, Candidate), candidate
    return candidate


@given(JOBS, st.sampled_from([25, 40, 60, 80]))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_returned_fits_its_own_simulation(job: Job, share: int) -> None:
    plan = make_plan(job, budget=f"{share}%", device=CPU)
    again = predicted(Explorer(job, CPU), plan)
    assert again.simulation.peak.allocated_bytes == plan.predicted.peak.allocated_bytes
    if plan.fits:
        assert plan.predicted.peak.high_bytes <= plan.budget.device_bytes
    else:
        assert plan.floor_bytes > plan.budget.device_bytes


@given(JOBS)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_larger_budget_is_never_slower(job: Job) -> None:
    explorer = Explorer(job, CPU)
    plain_bytes = explorer.plain.simulation.peak.allocated_bytes
    budgets = [plain_bytes * share // 100 for share in (3, 10, 30, 45, 60, 75, 90, 100)]
    found = [find(explorer, Fidelity.RESAMPLED, {}, budget) for budget in budgets]
    times = [one.step_s for one in found if one.fits]
    assert times == sorted(times, reverse=True)
    assert [one.fits for one in found] == sorted(one.fits for one in found)


def test_the_same_input_gives_the_same_plan() -> None:
    one, other = (make_plan(job(), budget="50%", device=CPU).to_dict() for _ in range(2))
    one.pop("took_s"), other.pop("took_s")
    assert one == other


def test_a_floor_is_a_plan_and_nothing_fits_below_it() -> None:
    impossible = make_plan(job(), budget="1%", device=CPU)
    assert not impossible.fits
    assert make_plan(job(), budget=impossible.floor_bytes, device=CPU).fits
    assert not make_plan(job(), budget=int(0.95 * impossible.floor_bytes), device=CPU).fits


def test_plain_is_kept_where_it_fits() -> None:
    plan = make_plan(job(), budget="1GiB", device=CPU)
    assert plan.fits and plan.slowdown <= 1.0
    assert not any(one.name in ("checkpoint", "recompute") for one in plan.strategies)


@pytest.mark.parametrize("budget", ["8 gigs", "8G", "-1GiB", "140%", "0", "nan", ""])
def test_nonsense_sizes_are_refused_with_a_suggestion(budget: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(job(), budget=budget, device=CPU)
    assert caught.value.advice
