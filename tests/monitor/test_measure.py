"""Measured peaks: against figures known by hand, and against the other way to measure."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from memfit.core.units import MIB
from memfit.jobs import Job, run_step
from memfit.launch import WorkerResult
from memfit.monitor import rates
from memfit.monitor.measure import measure_peak, measure_step, storage_bytes
from memfit.monitor.probes import probes
from memfit.monitor.step_peaks import StepPeaks


def job(zero_grad: Any = "after_step") -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256))
    return Job(model, lambda m, b: m(b).square().mean(), torch.randn(64, 256), torch.optim.AdamW, zero_grad=zero_grad)


def test_a_peak_known_by_hand() -> None:
    kept = torch.empty(MIB, dtype=torch.uint8)

    def step() -> None:
        first = torch.empty(2 * MIB, dtype=torch.uint8)
        second = torch.empty(3 * MIB, dtype=torch.uint8)
        del first
        third = torch.empty(MIB, dtype=torch.uint8)
        del second, third

    assert measure_peak(step, [kept, kept[5:], kept.view(2, -1)]) == 6 * MIB


def test_views_and_tied_tensors_count_once() -> None:
    layer = nn.Linear(64, 64, bias=False)
    assert storage_bytes([layer.weight, layer.weight.t(), layer.weight[3:]]) == 64 * 64 * 4


def test_the_second_step_is_what_an_independent_script_measures() -> None:
    one = job()
    run_step(one, one.batch)
    states = [t for state in one.optimizer.state.values() for t in state.values()]
    resident = sum(t.nbytes for t in [*one.model.parameters(), one.batch, *states])
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run_step(one, one.batch)
    current = highest = 0
    for event in seen.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            current += event.nbytes()
            highest = max(highest, current)
    assert measure_step(one, lambda: run_step(one, one.batch)) == resident + highest


@pytest.mark.parametrize("zero_grad", ["before_forward", "before_backward"])
def test_gradients_that_outlive_the_step_are_counted(zero_grad: str) -> None:
    one, other = job(), job(zero_grad)
    for each in (one, other):
        run_step(each, each.batch)
    plain, kept = (measure_step(each, lambda each=each: run_step(each, each.batch)) for each in (one, other))
    assert kept == plain  # the peak is in the optimizer's step, where gradients are there in both


def test_steps_of_a_known_kind_are_not_profiled_again() -> None:
    one = job()
    peaks = StepPeaks(one)
    sizes = [64, 64, 64, 32, 32, 128, 64]
    given = [torch.randn(size, 256) for size in sizes]
    seen = [peaks.run(batch, lambda batch=batch: run_step(one, batch)) for batch in given]
    assert [profiled for _, _, profiled in seen] == [True, True, False, True, False, True, False]
    assert seen[3][1] < seen[2][1] == seen[6][1] == seen[1][1] < seen[5][1] == peaks.highest_bytes


@pytest.mark.slow
def test_rates_are_measured_once_and_kept(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = rates.machine_rates()
    assert first["rates"]["float32"] > 1e8 and first["bandwidth"] > 1e8 and 1e-8 < first["overhead_s"] < 1e-2
    monkeypatch.setattr(rates, "run_worker", lambda *_, **__: pytest.fail("measured again"))
    assert rates.machine_rates() == first


def test_rates_of_a_busy_machine_are_measured_anew_when_they_are_old(
        tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured = WorkerResult((), {"schema": rates.SCHEMA, "busy": True, "bandwidth": 1.0}, 0, "", "", False, False, False, 1.0)
    calls: list[str] = []
    monkeypatch.setattr(rates, "run_worker", lambda name, *_, **__: calls.append(name) or measured)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert rates.machine_rates() == rates.machine_rates() == measured.result and len(calls) == 1
    assert capsys.readouterr().err.count("measuring this machine's rates, once") == 1
    hour_ago = time.time() - 3600
    os.utime(rates.rates_path(), (hour_ago, hour_ago))
    rates.machine_rates()
    assert len(calls) == 2


def test_a_probe_counts_its_work_as_a_trace_does() -> None:
    one = next(probe for probe in probes() if probe.key == "mm:float32")
    args = one.arguments()
    (m, k), n = args[0].shape, args[1].shape[1]
    flops, nbytes, seconds = rates._timed(one)
    assert (flops, nbytes) == (2 * m * k * n, 4 * (m * k + k * n + m * n)) and seconds > 0
