"""What every plan promises, on drawn models: it fits its own simulation, a larger budget is never slower, the same input gives
the same plan, no strategy is in it whose removal would fit and be faster; and mixes are found where only a mix fits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from memfit.core.costs import costs
from memfit.core.device import Device
from memfit.core.results import Plan
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.plan import make_plan
from memfit.plan.explore import Candidate, Explorer

PLAIN = Device("cpu", "cpu", 8 << 30, {"float32": 1e11, "bfloat16": 2e11}, 1e10, overhead_s=2e-6)
# As measured ones are: small calls and far tensors cost more.
MEASURED = Device(
    "cpu", "cpu", 8 << 30, {"float32": 1e11, "bfloat16": 2e11}, 1e10, overhead_s=2e-6,
    costs=costs({"mul:float32": [(0, 1e4, 1e-6), (0, 1e6, 3e-5), (0, 1e7, 4e-4)], "bernoulli_:float32": [(0, 1e4, 7e-6)],
                 "mm:float32": [(1e5, 1e4, 4e-6), (1e7, 1e5, 9e-5), (1e9, 1e7, 7e-3)]},
                {"forward": 6e-6, "backward": 6e-6, "optimizer": 1e-6, "hooked": 1e-5, "again": 1.5e-5},
                [(1e6, 4e10), (1e8, 1e10)]))


class Piece(nn.Module):
    """A residual block of one of a few kinds."""

    def __init__(self, kind: str, width: int, drop: float) -> None:
        super().__init__()
        self.kind, self.drop = kind, nn.Dropout(drop)
        self.norm = nn.BatchNorm1d(width) if kind == "batchnorm" else nn.LayerNorm(width)
        inside = width if kind == "narrow" else 4 * width
        self.one, self.two = nn.Linear(width, inside), nn.Linear(inside, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activation = F.relu if self.kind == "batchnorm" else F.gelu
        return x + self.drop(self.two(activation(self.one(self.norm(x)))))


class Drawn(nn.Module):
    def __init__(self, kinds: tuple[str, ...], width: int, drop: float, wide: bool) -> None:
        super().__init__()
        self.pieces = nn.Sequential(*(Piece(kind, width, drop) for kind in kinds))
        self.head = nn.Linear(width, 2000 if wide else 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pieces(x))


def job(kinds: tuple[str, ...], width: int, samples: int, drop: float, wide: bool, adam: bool) -> Job:
    torch.manual_seed(0)
    model = Drawn(kinds, width, drop, wide)
    batch = (torch.randn(samples, width), torch.randint(0, 10, (samples,)))
    kind = torch.optim.AdamW if adam else torch.optim.SGD
    return Job(model, lambda net, data: F.cross_entropy(net(data[0]), data[1]), batch, kind(model.parameters(), lr=1e-3))


KINDS = st.lists(st.sampled_from(["narrow", "layernorm", "batchnorm"]), min_size=1, max_size=5).map(tuple)
JOBS = st.tuples(KINDS, st.sampled_from([16, 48, 96]), st.sampled_from([64, 256, 1024]), st.sampled_from([0.0, 0.1]),
                 st.booleans(), st.booleans())
BUDGETS = st.tuples(st.integers(35, 110), st.integers(1, 60))
STRATEGIES = ("micro-batches", "step-in-backward", "fused-step", "chunked-loss", "recompute", "checkpoint")
DEVICES = st.sampled_from([PLAIN, MEASURED])
# Weights are half of the peak and activations the other: below a half, gradients and activations both have to go.
MIXED = (("layernorm",) * 3, 96, 1024, 0.0, False, True)


def check(drawn: tuple[object, ...], budgets: tuple[int, int], device: Device) -> None:
    made = job(*drawn)  # type: ignore[arg-type]
    explorer = Explorer(job(*drawn), device)  # type: ignore[arg-type]
    whole = explorer.plain.simulation.peak.allocated_bytes
    small, large = (int(whole * share / 100) for share in (budgets[0], budgets[0] + budgets[1]))
    tight, loose = make_plan(made, budget=small, device=device), make_plan(made, budget=large, device=device)
    assert _told(make_plan(made, budget=small, device=device)) == _told(tight)
    for plan in (tight, loose):
        seen = _seen(explorer, plan)
        assert seen.simulation.peak == plan.predicted.peak
        assert (plan.predicted.peak.high_bytes <= plan.budget.device_bytes) == plan.fits
        if plan.fits:
            _nothing_idle(explorer, plan, seen)
    assert loose.fits or not tight.fits
    if tight.fits:
        assert loose.predicted.step_s <= tight.predicted.step_s * (1 + 1e-9)
    if explorer.plain.simulation.peak.high_bytes <= large:
        assert loose.predicted.step_s <= explorer.plain.simulation.step_s * (1 + 1e-9)


def _nothing_idle(explorer: Explorer, plan: Plan, seen: Candidate) -> None:
    """No strategy whose removal would fit and be faster."""
    for one in plan.strategies:
        rest = [Choice(s.name, dict(s.settings)) for s in plan.strategies if s is not one]
        without = explorer.candidate(rest)
        if isinstance(without, Candidate) and without.simulation.peak.high_bytes <= plan.budget.device_bytes:
            assert without.simulation.step_s > seen.simulation.step_s, one.name


def _seen(explorer: Explorer, plan: Plan) -> Candidate:
    seen = explorer.candidate([Choice(one.name, dict(one.settings)) for one in plan.strategies])
    assert isinstance(seen, Candidate)
    return seen


def _told(plan: Plan) -> dict[str, object]:
    return {name: value for name, value in plan.to_dict().items() if name != "took_s"}


@given(JOBS, BUDGETS, DEVICES)
@example(MIXED, (40, 10), PLAIN)
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_promises(drawn: tuple[object, ...], budgets: tuple[int, int], device: Device) -> None:
    check(drawn, budgets, device)


@pytest.mark.slow
@given(JOBS, BUDGETS, DEVICES)
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_promises_on_many(drawn: tuple[object, ...], budgets: tuple[int, int], device: Device) -> None:
    check(drawn, budgets, device)


def test_a_mix_is_found_where_no_single_strategy_fits() -> None:
    explorer = Explorer(job(*MIXED), PLAIN)
    whole = explorer.plain.simulation.peak.allocated_bytes
    alone = []
    for name in STRATEGIES:
        barred = {other: "left out" for other in STRATEGIES if other != name}
        alone.append(make_plan(job(*MIXED), budget=1024, device=PLAIN, barred=barred).floor_bytes)
    budget = int(0.97 * min(alone))
    plan = make_plan(job(*MIXED), budget=budget, device=PLAIN)
    assert budget < whole and plan.fits and len(plan.strategies) >= 2

