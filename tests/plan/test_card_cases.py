"""Cases that people report of cards, predicted without one; and plans for a card."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from memfit.core.device import Device
from memfit.core.results import Estimate
from memfit.core.strategy import Choice
from memfit.core.units import MIB
from memfit.hardware import find_device
from memfit.jobs import Job
from memfit.plan import estimate_job, make_plan
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_settings import AllocatorSettings
from memfit.simulate.cuda_stats import OutOfMemory

CARD = find_device("rtx3060")
HALF = Choice("autocast", {"dtype": "bfloat16"})


def small(room_mib: int) -> Device:
    """The card with so much for the allocator, by the typical context and kernels."""
    seen = estimate_job(wide(), device=CARD).peak
    return replace(CARD, capacity_bytes=seen.process_bytes - seen.reserved_bytes + room_mib * MIB)


WEIGHTS = 12 * (2048 * 2048 + 2048) * 4


def wide(samples: int = 1, optimizer: Callable[..., Any] = torch.optim.AdamW, *, zero_grad: Any = "before_forward",
         **settings: Any) -> Job:
    """Weights are most of it: 192 MiB of them."""
    return Job(lambda: nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(12))), lambda net, x: net(x).square().mean(),
               torch.randn(samples, 2048), lambda parameters: optimizer(parameters, **settings), zero_grad=zero_grad)


class TestTheFirstStepOfTheOptimizerRunsOut:
    """Batch 1, half precision, and forward and backward fit; the state, made in the first real step, does not."""

    @pytest.mark.parametrize("samples", [1, 2])
    @pytest.mark.parametrize("choices", [(), (HALF,)])
    def test_it_is_said_where_and_no_batch_or_autocast_helps(self, samples: int, choices: tuple[Choice, ...]) -> None:
        job = wide(samples, foreach=False)
        card = small(int(3.5 * WEIGHTS) // MIB)
        seen = estimate_job(job, device=card, choices=choices)
        where = "in a step: forward" if choices else "in the first step: optimizer"  # a plan's steps have their states
        assert not seen.fits and any("runs out of memory" in note and where in note for note in seen.notes)
        assert seen.at_peak.by_category["optimizer_state"] >= 2 * WEIGHTS

    def test_without_state_it_fits(self) -> None:
        job = wide(optimizer=torch.optim.SGD, lr=0.1, foreach=False)
        assert estimate_job(job, device=small(int(3.5 * WEIGHTS) // MIB)).fits

    def test_a_scaler_skips_no_step_in_the_trace(self) -> None:
        scaler = torch.amp.GradScaler("cuda")

        def loss(net: Any, x: Any) -> torch.Tensor:
            with torch.autocast("cuda", dtype=torch.float16):
                return scaler.scale(net(x).square().mean())

        job = wide()
        job.loss = loss
        assert estimate_job(job, device=CARD).at_peak.by_category["optimizer_state"] >= 2 * WEIGHTS


class TestHalfOfTheDeviceCannotBeUsed:
    """A huge block was freed, and small ones that stay were cut from it."""

    @staticmethod
    def run(text: str) -> CachingAllocator:
        allocator = CachingAllocator(AllocatorSettings.from_environment({"PYTORCH_CUDA_ALLOC_CONF": text}), 12_000 * MIB)
        allocator.free(allocator.malloc(11_000 * MIB))
        kept = [allocator.malloc(2 * MIB) for _ in range(8)]
        allocator.malloc(11_000 * MIB)
        assert all(block.allocated for block in kept)
        return allocator

    def test_numbers_tell_fragmentation_from_too_little(self) -> None:
        with pytest.raises(OutOfMemory) as caught:
            self.run("")
        error = caught.value
        assert error.requested_bytes == 11_000 * MIB
        assert error.allocated_bytes == 16 * MIB and error.reserved_bytes == 11_000 * MIB

    def test_expandable_segments_help_and_a_split_limit_does_not_hurt(self) -> None:
        assert self.run("expandable_segments:True").stats.reserved_bytes < 11_100 * MIB
        assert self.run("max_split_size_mb:512").stats.allocated_bytes == 11_016 * MIB


class Eight(torch.optim.Optimizer):
    """Moments of a byte an element, where a tensor has 4096 elements at least, as 8-bit optimizers keep them."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            kind = torch.uint8 if p.numel() >= 4096 else torch.float32
            if not self.state[p]:
                self.state[p] = {name: torch.zeros_like(p, dtype=kind) for name in "mv"}
            p.sub_(p.grad, alpha=1e-3)


class TestEightBitStatesChangeNothing:
    """Whether they are worth it is predicted as a share of the peak: nothing where activations are what there is."""

    @staticmethod
    def images() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                             nn.AdaptiveAvgPool2d(1), nn.Flatten())

    @staticmethod
    def small_tensors() -> nn.Module:
        return nn.Sequential(*(nn.Linear(60, 60) for _ in range(40)))

    @staticmethod
    def one_large() -> nn.Module:
        return nn.Sequential(nn.Linear(2048, 2048))

    @pytest.mark.parametrize(("make", "inputs", "least", "most"), [
        (images, (16, 3, 64, 64), 0.0, 0.01), (small_tensors, (1, 60), 0.0, 0.01), (one_large, (1, 2048), 0.2, 0.6)])
    def test_share_saved(self, make: Any, inputs: tuple[int, ...], least: float, most: float) -> None:
        def peak(optimizer: Any) -> Estimate:
            return estimate_job(Job(make, lambda net, x: net(x).square().mean(), torch.randn(inputs), optimizer), device=CARD)

        full, eight = peak(lambda parameters: torch.optim.Adam(parameters, foreach=False)), peak(Eight)
        states = [one.at_peak.by_category.get("optimizer_state", 0) for one in (full, eight)]
        assert least <= (states[0] - states[1]) / full.peak.allocated_bytes <= most


class Awkward(nn.Module):
    """What naive estimators count wrong: ties, views, in-place operators, reused modules, a frozen half, a checkpoint,
    numbers that are no floats."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(2000, 64), nn.Linear(64, 2000, bias=False)
        self.head.weight = self.embedding.weight
        self.shared, self.frozen, self.act = nn.Linear(64, 64), nn.Linear(64, 64), nn.ReLU(inplace=True)
        self.frozen.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        first, second = x.view(len(ids), -1, 2, 64).unbind(2)
        x = torch.cat((first, second), 1)
        for _ in range(3):
            x = x + self.act(self.shared(x))
        x = checkpoint(lambda t: F.gelu(self.frozen(t)), x, use_reentrant=False)
        return self.head(x)


class TestEstimateAndReality:
    """What is counted is said, once each, and adds up; a budget inside the interval is no yes."""

    def test_ties_once_and_the_sum_is_the_peak(self) -> None:
        job = Job(Awkward, lambda net, ids: net(ids).square().mean(), torch.randint(0, 2000, (8, 32)), torch.optim.AdamW)
        seen = estimate_job(job, device=CARD)
        model = Awkward()
        assert len({p.data_ptr() for p in model.parameters()}) == 5
        parts = seen.at_peak.by_category
        assert sum(parts.values()) == pytest.approx(seen.peak.allocated_bytes, abs=MIB // 4)  # but for blocks' ends
        exact = sum(-(-p.numel() * 4 // 512) * 512 for p in model.parameters())
        assert parts["parameters"] == pytest.approx(exact, abs=MIB // 4)
        trained = sum(p.numel() * 8 for p in model.parameters() if p.requires_grad)
        assert trained <= parts["optimizer_state"] <= trained + MIB

    def test_inside_the_interval_is_no_yes(self) -> None:
        peak = estimate_job(wide(), device=CARD).peak
        assert peak.low_bytes < peak.process_bytes < peak.high_bytes
        between = replace(CARD, capacity_bytes=(peak.process_bytes + peak.high_bytes) // 2)
        assert estimate_job(wide(), device=replace(CARD, capacity_bytes=peak.high_bytes)).fits
        seen = estimate_job(wide(), device=between)
        assert not seen.fits and any("may run out" in note for note in seen.notes)


class TestTraps:
    """What estimators and benchmarks are known to miss."""

    def test_autocast_can_cost_more_than_it_saves(self) -> None:
        """Weights that are most of it are cast and kept beside themselves."""
        plain = estimate_job(wide(optimizer=torch.optim.SGD, lr=0.1), device=CARD)
        cast = estimate_job(wide(optimizer=torch.optim.SGD, lr=0.1), device=CARD, choices=(HALF,))
        assert cast.peak.allocated_bytes > plain.peak.allocated_bytes
        gradients = [seen.at_peak.by_category["gradients"] for seen in (plain, cast)]
        assert gradients[0] == pytest.approx(gradients[1], rel=0.01)  # they stay as they were

    def test_lists_of_temporaries_and_the_place_of_zero_grad(self) -> None:
        one, many = (estimate_job(wide(foreach=foreach), device=CARD).peak for foreach in (False, True))
        assert many.allocated_bytes - one.allocated_bytes > 0.7 * WEIGHTS
        early, late = (estimate_job(wide(64, torch.optim.SGD, lr=0.1, foreach=False, zero_grad=place), device=CARD).peak
                       for place in ("before_forward", "before_backward"))
        assert late.allocated_bytes > early.allocated_bytes

    def test_context_and_workspaces_are_the_cards(self) -> None:
        peaks = [estimate_job(wide(), device=find_device(name)).peak for name in ("t4", "rtx3060", "h100-sxm")]
        assert len({peak.process_bytes - peak.reserved_bytes for peak in peaks}) == 3
        assert peaks[2].allocated_bytes - peaks[0].allocated_bytes >= 2 * (32 - 9) * MIB  # cuBLAS, of two threads

    def test_another_model_in_the_process_and_an_earlier_estimate_change_nothing(self) -> None:
        before = estimate_job(wide(), device=CARD).peak
        beside = [wide(), wide()]
        assert estimate_job(beside[0], device=CARD).peak == before == estimate_job(wide(), device=CARD).peak

    def test_the_first_step_is_not_the_steady_one(self) -> None:
        seen = estimate_job(wide(4096, foreach=False), device=CARD)
        assert seen.first_step_peak_bytes + WEIGHTS < seen.peak.allocated_bytes

    def test_three_figures_each_by_its_name(self) -> None:
        peak = estimate_job(wide(), device=CARD).peak
        assert peak.allocated_bytes < peak.reserved_bytes < peak.process_bytes


class TestPlansForACard:
    """A card that is too small for the plain step, and what makes it enough."""

    @staticmethod
    def job() -> Job:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(6)))
        return Job(model, lambda net, x: net(x).square().mean(), torch.randn(8192, 256), torch.optim.AdamW(model.parameters()))

    def test_a_plan_that_fits_is_its_own_prediction(self) -> None:
        plain = estimate_job(self.job(), device=CARD).peak
        budget = plain.process_bytes - 300 * MIB
        plan = make_plan(self.job(), budget=budget, device=CARD)
        assert plan.fits and plan.strategies and plan.device == "rtx3060"
        assert plan.predicted.peak.high_bytes <= budget < plain.high_bytes
        choices = tuple(Choice(one.name, one.settings) for one in plan.strategies)
        assert estimate_job(self.job(), device=CARD, choices=choices).peak == plan.predicted.peak

    def test_the_cards_own_memory_is_the_budget_where_none_is_given(self) -> None:
        plan = make_plan(self.job(), device=CARD)
        assert plan.fits and not plan.strategies and plan.budget.device_bytes <= CARD.capacity_bytes

    @pytest.mark.slow
    def test_below_the_floor_it_is_said(self) -> None:
        plan = make_plan(self.job(), budget=350 * MIB, device=CARD)
        assert not plan.fits and plan.floor_bytes > 350 * MIB
        assert make_plan(self.job(), budget=plan.floor_bytes, device=CARD).fits
