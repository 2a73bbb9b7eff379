"""Proofs in fresh processes: plain dies under the limit, planned lives, results agree as promised."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from memfit.core.errors import UsageError
from memfit.core.results import Budget, Peak, Plan, PlannedStrategy, Predicted, Side, Verdict
from memfit.core.units import MIB
from memfit.jobs import Job
from memfit.launch import can_enforce
from memfit.prove import error_of, prove_job, prove_target

TARGETS = Path(__file__).parent.parent / "train" / "train_targets.py"
SIZES = {"batch": 4096, "width": 64, "hidden": 512, "drop": 0.1}
BLOCKS = {"modules": [str(number) for number in range(12)]}


def plan_of(budget_bytes: int, *strategies: tuple[str, dict[str, Any]]) -> Plan:
    whole = Predicted(Peak(*[256 * MIB] * 9), 1.0)
    planned = tuple(PlannedStrategy(name, settings, "", "") for name, settings in strategies)
    return Plan("target", "cpu", Budget(budget_bytes), True, "", planned, whole, whole, 1.0, 0, (), (), None, 0.0)


@pytest.mark.slow
def test_plain_dies_under_the_limit_and_checkpointing_lives_with_the_same_bits() -> None:
    told: list[tuple[str, str]] = []
    verdict = prove_target(f"{TARGETS}:deep", SIZES, plan_of(100 * MIB, ("checkpoint", BLOCKS)), steps=3,
                           on_event=lambda side, event: told.append((side, event["kind"])))
    assert verdict.same_result and verdict.fidelity == "bitwise" and verdict.max_rel_param_diff == 0
    assert verdict.planned.peak_bytes < 60 * MIB < 200 * MIB < verdict.plain.peak_bytes
    assert verdict.within_budget and error_of(verdict) is None
    assert verdict.slowdown > 0.5 and verdict.plain.step_s_median > 0
    assert ("plain", "timed") in told and ("planned", "timed") in told
    if can_enforce():
        assert verdict.enforced and verdict.planned.survives_budget is True and verdict.plain.survives_budget is False
        assert verdict.rss_growth_bytes is not None and verdict.rss_growth_bytes < 1.1 * 100 * MIB + 64 * MIB
    json.dumps(verdict.to_dict())


@pytest.mark.slow
def test_micro_batches_with_dropout_are_compared_without_it_and_that_is_said() -> None:
    sizes = {"batch": 64, "width": 32, "hidden": 64, "layers": 3, "drop": 0.2}
    plan = plan_of(64 * MIB, ("micro-batches", {"count": 4}), ("checkpoint", {"modules": ["0", "1"]}))
    verdict = prove_target(f"{TARGETS}:deep", sizes, plan, steps=3, enforce=False)
    assert verdict.same_result and verdict.fidelity == "resampled" and 0 < verdict.max_rel_grad_diff < 1e-5
    assert any("dropout off" in note for note in verdict.notes)
    assert verdict.plain.survives_budget is None and not verdict.enforced


@pytest.mark.slow
def test_a_live_job_is_shipped_and_gradients_of_a_step_in_backward_are_seen() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    job = Job(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), (torch.randn(16, 8), torch.arange(16) % 3),
              torch.optim.AdamW(model.parameters()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    verdict = prove_job(job, plan_of(32 * MIB, ("step-in-backward", {})), steps=2, enforce=False)
    assert verdict.same_result and verdict.fidelity == "bitwise" and verdict.grad_set_equal
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_what_cannot_be_shipped_asks_for_a_target() -> None:
    lock = threading.Lock()

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with lock:
            return model(batch).mean()

    job = Job(nn.Linear(2, 2), loss, torch.randn(2, 2), torch.optim.SGD)
    with pytest.raises(UsageError, match="cannot be sent to another process") as caught:
        prove_job(job, plan_of(MIB))
    assert "memfit prove path/to/file.py:function" in caught.value.advice


@pytest.mark.parametrize(("changes", "code"), [
    ({}, None), ({"same_result": False}, 5), ({"same_result": False, "fidelity": "adapted"}, None),
    ({"within_budget": False}, 6), ({"planned": Side(1, 1.0, False), "within_budget": False, "same_result": False}, 4)])
def test_a_verdict_has_one_exit_code(changes: dict[str, Any], code: int | None) -> None:
    side = Side(1, 1.0, True)
    fields: dict[str, Any] = {
        "within_budget": True, "same_result": True, "fidelity": "bitwise", "max_rel_loss_diff": 0.0,
        "max_rel_param_diff": 0.0, "buffers_equal": True, "grad_set_equal": True, "enforced": True,
        "plain": side, "planned": side}
    error = error_of(Verdict(**{**fields, **changes}))
    assert (error.code if error else None) == code
