"""Attention adds its mask in place, but not where a dispatch mode is active, as it is under recomputation by tensor."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memfit.apply import apply_choices
from memfit.core.strategy import Choice
from memfit.jobs import Job, run_step
from memfit.monitor.measure import measure_step
from memfit.plan import estimate_job, make_plan

KIB = 2**10


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.three, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.three(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


def attention_job() -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), Attention(), Attention())
    return Job(model, lambda model, batch: model(batch["x"]).square().mean(), {"x": torch.randn(8, 64, 32)},
               partial(torch.optim.AdamW, lr=1e-3))


def measured(choices: list[Choice]) -> int:
    job = attention_job()
    apply_choices(job, choices)
    run_step(job, job.batch)
    return measure_step(job, lambda: run_step(job, job.batch))


@pytest.mark.parametrize("tensors", [[], ["_safe_softmax:0-2", "bmm:0-5"], ["_safe_softmax:0-2", "bmm:0-5", "add:0-9"],
                                     ["bmm:0,2,4", "add:0-9", "mul:0-20"]], ids=" ".join)
def test_predicted_as_measured(tensors: list[str]) -> None:
    choices = [Choice("recompute", {"tensors": tensors})]
    predicted = estimate_job(attention_job(), choices=choices).peak.allocated_bytes
    assert abs(predicted - measured(choices)) <= 4 * KIB


@pytest.mark.parametrize("budget", ["90%", "75%", "60%"])
def test_what_the_plan_names_is_what_runs(budget: str) -> None:
    elsewhere = dict.fromkeys(("offload-activations", "offload-optimizer", "compress-activations"), "not asked for here")
    plan = make_plan(attention_job(), budget=budget, fidelity="bitwise", barred=elsewhere)
    choices = [Choice(one.name, dict(one.settings)) for one in plan.strategies]
    assert any(choice.name == "recompute" for choice in choices)
    assert abs(plan.predicted.peak.allocated_bytes - measured(choices)) <= 4 * KIB
