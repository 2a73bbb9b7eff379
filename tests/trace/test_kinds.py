"""Predicted against measured, first and steady step, over kinds of model, optimizer, loss and batch."""

from __future__ import annotations

import pytest
import torch
from trace_jobs import KINDS

from memfit.core.device import Device
from memfit.jobs import Job, run_step
from memfit.monitor.measure import job_tensors, measure_peak
from memfit.simulate import simulate
from memfit.trace import trace_job

CPU = Device("cpu", "cpu", 8 << 30, {"float32": 1e11}, 1e10)
KIB = 2**10


def measured(job: Job) -> list[int]:
    _ = job.model, job.optimizer
    return [measure_peak(lambda: run_step(job, job.batch), list(job_tensors(job))) for _ in range(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_predicted_is_measured(kind: str) -> None:
    torch.manual_seed(0)
    traces, job = trace_job(KINDS[kind]()), KINDS[kind]()
    guesses = [simulate(trace, CPU).peak.allocated_bytes for trace in (traces.first, traces.steady)]
    for guess, truth in zip(guesses, measured(job), strict=True):
        assert abs(guess - truth) <= max(0.01 * truth, 128 * KIB), (guess, truth)
