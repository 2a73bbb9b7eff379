"""A case predicted: traced as its card and its published version of PyTorch would run it, and replayed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from cuda_rows.common import Case
from memfit.core.device import Device
from memfit.core.results import Peak
from memfit.hardware import find_card
from memfit.hardware.process_memory import Span, process_memory
from memfit.jobs import Job
from memfit.simulate import simulate
from memfit.trace import trace_job
from memfit.trace.cuda import CudaTarget, target_of
from memfit.trace.cuda.target import parse_version


@dataclass(frozen=True)
class Predicted:
    """Bytes of the figure that the case reads, its interval, and how long it took; `notes` of the simulation."""

    predicted_bytes: int
    low_bytes: int
    high_bytes: int
    took_s: float
    notes: str = ""


def predict(case: Case) -> Predicted:
    """The case's job; the interval reaches to what the other set-up needs, where the source leaves one open."""
    began = time.perf_counter()
    device = find_card(case.device)
    (value, low, high), notes = _predict(case, case.build, device)
    took_s = time.perf_counter() - began
    if case.or_else is not None:
        (_, other_low, other_high), _ = _predict(case, case.or_else, device)
        low, high = min(low, other_low), max(high, other_high)
    return Predicted(value, low, high, took_s, notes)


def _predict(case: Case, build: Callable[[], Job], device: Device) -> tuple[tuple[int, int, int], str]:
    traces = trace_job(build(), _target(device, case.torch))
    seen = simulate(traces.steady, device, first=traces.first, torch_version=case.torch)
    value, low, high = figure(case, seen.peak, seen.first_step_peak_bytes or 0, device)
    less = case.minus_bytes
    return (value - less, low - less, high - less), "; ".join(seen.notes)


def figure(case: Case, peak: Peak, first_step_bytes: int, device: Device) -> tuple[int, int, int]:
    """Expected, low and high bytes of what the source reports."""
    if case.reads == "reserved":
        return peak.reserved_bytes, peak.reserved_low_bytes, peak.reserved_high_bytes
    if case.reads == "process":
        return peak.process_bytes, peak.low_bytes, peak.high_bytes
    if case.reads == "reserved_and_kernels":
        kernels = process_memory(device, case.torch, convolutions=case.convolutions).modules
        low, usual, high = Span(peak.reserved_low_bytes, peak.reserved_bytes, peak.reserved_high_bytes).beside(kernels)
        return usual, low, high
    if case.reads == "first_allocated":
        share = first_step_bytes / peak.allocated_bytes
        return first_step_bytes, int(peak.allocated_low_bytes * share), int(peak.allocated_high_bytes * share)
    return peak.allocated_bytes, peak.allocated_low_bytes, peak.allocated_high_bytes


def as_dict(predicted: Predicted) -> dict[str, object]:
    return asdict(predicted)


def _target(device: Device, version: str) -> CudaTarget | None:
    """The card with the published version of PyTorch; the version here where none is published (`2.x`)."""
    target = target_of(device)
    if target is None or not re.match(r"\d+\.\d+", version):
        return target
    return replace(target, torch_version=parse_version(version))
