"""Cases that people report, each as a test of its kind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memfit.core.device import Device
from memfit.jobs import Job, batches
from memfit.plan import estimate_job, make_plan
from memfit.plan.largest import largest_batch

CPU = Device("cpu", "cpu", 8 << 30, {"float32": 1e11, "bfloat16": 2e11}, 1e10, overhead_s=2e-6)


def wide(samples: int = 1, scaler: bool = False) -> Job:
    """Weights are most of the memory: twelve Linear(512), batch 1, Adam."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(12)))
    batch = (torch.randn(samples, 512), torch.randn(samples, 512))
    return Job(model, lambda net, data: nn.functional.mse_loss(net(data[0]), data[1]), batch,
               torch.optim.Adam(model.parameters()))


def activations(samples: int = 256) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1)) for _ in range(6)))
    batch = (torch.randn(samples, 64), torch.randn(samples, 64))
    return Job(model, lambda net, data: nn.functional.mse_loss(net(data[0]), data[1]), batch,
               torch.optim.AdamW(model.parameters()))


class TestFirstOptimizerStepRunsOut:
    """Batch 1, everything on, and the first real optimizer step still runs out: state is made in that step."""

    def test_state_is_predicted_before_any_step_was_made(self) -> None:
        job = wide()
        weights = sum(p.numel() * 4 for p in job.model.parameters())
        seen = estimate_job(job, device=CPU)
        assert not job.optimizer.state, "estimating must not step the real optimizer"
        assert seen.at_peak.by_category["optimizer_state"] >= 2 * weights
        assert seen.first_step_peak_bytes <= seen.peak.allocated_bytes
        assert seen.peak.allocated_bytes >= 4 * weights  # weights, gradients, two states

    def test_budget_below_the_states_is_met_by_states_elsewhere(self) -> None:
        job = wide()
        weights = sum(p.numel() * 4 for p in job.model.parameters())
        plan = make_plan(job, budget=int(2.5 * weights), device=CPU)
        assert plan.fits and "offload-optimizer" in [one.name for one in plan.strategies]
        assert plan.notes[0].startswith("plain's peak is mostly parameters, gradients and optimizer states")

    def test_budget_below_the_parameters_is_refused_with_what_dominates(self) -> None:
        job = wide()
        weights = sum(p.numel() * 4 for p in job.model.parameters())
        plan = make_plan(job, budget=int(0.9 * weights), device=CPU)
        assert not plan.fits and plan.floor_bytes > weights
        from memfit.plan.advice import does_not_fit

        error = does_not_fit(plan)
        assert error.code == 3 and "parameters" in error.advice and str(plan.floor_bytes) in error.advice

    def test_autocast_does_not_shrink_states(self) -> None:
        from memfit.core.strategy import Choice

        plain = estimate_job(wide(), device=CPU)
        cast = estimate_job(wide(), device=CPU, choices=(Choice("autocast", {"dtype": "bfloat16"}),))
        assert cast.at_peak.by_category["optimizer_state"] == plain.at_peak.by_category["optimizer_state"]


class TestBatchSizeSearch:
    """The size that is returned was itself traced and simulated, and works."""

    @pytest.mark.parametrize("share", [0.6, 1.0, 3.0])
    def test_returned_size_fits_and_twice_it_does_not(self, share: float) -> None:
        job = activations()
        budget = int(share * estimate_job(job, device=CPU).peak.high_bytes)
        size = largest_batch(job, CPU, budget, [()])
        assert size is not None
        assert estimate_job(activations(size), device=CPU).peak.high_bytes <= budget
        assert estimate_job(activations(2 * size), device=CPU).peak.high_bytes > budget

    def test_nothing_fits(self) -> None:
        assert largest_batch(activations(), CPU, 1024, [()]) is None

    def test_the_job_is_left_alone(self) -> None:
        job = activations(16)
        before = [p.clone() for p in job.model.parameters()]
        state = torch.get_rng_state()
        largest_batch(job, CPU, 1 << 24, [()])
        assert batches.size(job.batch) == 16 and not job.optimizer.state
        assert torch.equal(state, torch.get_rng_state())
        assert all(torch.equal(a, b) for a, b in zip(before, job.model.parameters(), strict=True))


class TestEstimateSaysWhatItIsMadeOf:
    """Right within 10 %: the estimate has an interval and a breakdown that adds up."""

    def test_breakdown_adds_up_to_the_peak(self) -> None:
        seen = estimate_job(activations(), device=CPU)
        assert sum(seen.at_peak.by_category.values()) == seen.peak.allocated_bytes
        assert seen.peak.low_bytes <= seen.peak.allocated_bytes <= seen.peak.high_bytes
        assert seen.at_peak.phase in {"forward", "backward", "optimizer"}

    def test_a_plan_whose_interval_crosses_the_budget_does_not_fit(self) -> None:
        job = activations()
        exact = estimate_job(job, device=CPU).peak
        plan = make_plan(job, budget=exact.allocated_bytes, device=CPU)
        assert plan.strategies or not plan.fits
        assert make_plan(job, budget=exact.high_bytes, device=CPU).slowdown <= 1.0
