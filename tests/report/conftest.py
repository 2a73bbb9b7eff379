"""Results as the rooms above would hand them over, with names that need escaping."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from memfit.core.results import (
    AtPeak,
    Budget,
    Estimate,
    FrontierPoint,
    LargeTensor,
    Peak,
    Plan,
    PlannedStrategy,
    Predicted,
    Rejected,
    Run,
    Side,
    Timeline,
    Verdict,
)

MIB = 2**20
MODULE = "encoder.layer.3.<lambda>&co"
MODULES = [f"encoder.layer.{index}" for index in range(12)]


def peak(allocated: int, process: int = 0) -> Peak:
    judged = process or allocated
    return Peak(allocated, allocated, allocated + MIB, process, process, process, process, judged - MIB, judged + MIB)


def timeline(passes: int, height: int, samples: int = 600) -> Timeline:
    """Activations that rise and fall `passes` times over 100 MiB of parameters."""
    x = tuple(range(0, samples * 2, 2))
    half = samples // (2 * passes)
    activations = tuple(int(height * MIB * (1 - abs(i % (2 * half) - half) / half)) for i in range(samples))
    turns = ((("forward", "backward")[i % 2], 2 * half * i) for i in range(2 * passes))
    phases = (*turns, ("optimizer", x[-4]))
    top = activations.index(max(activations))
    at = AtPeak("backward", MODULE, "aten.bmm.default", {"parameters": 100 * MIB, "activations": activations[top]})
    held = {"activations": activations, "parameters": (100 * MIB,) * samples, "workspace": (0,) * samples}
    return Timeline(x, held, phases, x[top], 100 * MIB + activations[top], at)


def mix(*names: str) -> tuple[dict[str, Any], ...]:
    known = {"micro-batches": {"count": 4}, "checkpoint": {"modules": MODULES}}
    return tuple({"name": name, "settings": known[name]} for name in names)


@pytest.fixture
def plan() -> Plan:
    own = mix("micro-batches", "checkpoint")
    frontier = (
        FrontierPoint(500 * MIB, 1.0, (), True),
        FrontierPoint(300 * MIB, 1.1, mix("checkpoint"), False),
        FrontierPoint(130 * MIB, 1.31, own, True),
    )
    return Plan(
        target="models.py:<make>", device="cpu", budget=Budget(140 * MIB), fits=True, fidelity="resampled",
        strategies=tuple(PlannedStrategy(one["name"], one["settings"], "bitwise", f"why {one['name']}") for one in own),
        predicted=Predicted(peak(130 * MIB), 0.537), baseline=Predicted(peak(500 * MIB), 0.41), slowdown=1.31,
        floor_bytes=120 * MIB, rejected=(Rejected("autocast", "fidelity <reduced> is not allowed"),),
        frontier=frontier, largest_batch=96, took_s=3.2, notes=("a note & more",), timeline=timeline(4, 30),
        baseline_timeline=timeline(1, 400), source="if a < b:\n    pass\n",
    )  # fmt: skip


@pytest.fixture
def estimate() -> Estimate:
    own = timeline(1, 400)
    assert own.at_peak
    largest = (LargeTensor(96 * MIB, (16, 12, 128, 128), "float32", MODULE, "aten._softmax.default", "activations"),)
    return Estimate("bert-base", "rtx3060", peak(9 * 2**30, 10 * 2**30), 8 * 2**30, own.at_peak, largest, 0.41, 0.5,
                    timeline=own)  # fmt: skip


@pytest.fixture
def verdict() -> Verdict:
    plain, planned = Side(500 * MIB, 0.41, False), Side(129 * MIB, 0.54, True)
    return Verdict(True, True, "resampled", 2.1e-7, 3.4e-6, True, True, True, plain, planned, 140 * MIB, 4e-7, 1.32)


@pytest.fixture
def run(plan: Plan) -> Run:
    return Run(60, 2.3, 0.31, 129 * MIB, 540 * MIB, 130 * MIB, 140 * MIB, True, True, 2, 0.54, 118.5, plan.to_dict(),
               {"accuracy": 0.93})  # fmt: skip


@pytest.fixture
def bare(plan: Plan) -> Plan:
    """A plan with everything left out that may be left out, and that does not fit."""
    return dataclasses.replace(plan, fits=False, floor_bytes=150 * MIB, strategies=(), rejected=(), frontier=(),
                               largest_batch=None, notes=(),
                               timeline=None, baseline_timeline=None, source=None)  # fmt: skip
