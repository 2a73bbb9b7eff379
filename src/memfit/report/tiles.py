"""The few figures at the head of a result: name, value, and one line of context."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.core.results import Estimate, Plan, Result, Run, Verdict
from memfit.report import wording
from memfit.report.format import gib, number, ratio, seconds


@dataclass(frozen=True)
class Tile:
    name: str
    value: str
    more: str = ""


def tiles(result: Result) -> list[Tile]:
    """The figures that are read first; none for kinds that have no picture of their own."""
    match result:
        case Plan():
            return _plan(result)
        case Estimate():
            return _estimate(result)
        case Verdict():
            return _verdict(result)
        case Run():
            return _run(result)
        case _:
            return []


def _plan(plan: Plan) -> list[Tile]:
    peak, base = plan.predicted.peak, wording.judged_bytes(plan.baseline.peak, plan.device)
    host = "" if plan.budget.host_bytes is None else f"host {gib(plan.budget.host_bytes)}"
    batch = [Tile("largest batch", str(plan.largest_batch), "in this budget")] if plan.largest_batch is not None else []
    return [
        Tile("budget", gib(plan.budget.device_bytes), host),
        Tile(
            "predicted peak" if plan.fits else "smallest plan",
            gib(wording.judged_bytes(peak, plan.device)),
            f"at most {gib(peak.high_bytes)}",
        ),
        Tile("plain needs", gib(base), f"step time {seconds(plan.baseline.step_s)}"),
        Tile("step time", ratio(plan.slowdown), f"{seconds(plan.predicted.step_s)}, plain is 1.00x"),
        Tile("floor", gib(plan.floor_bytes), "smallest at this fidelity"),
        *batch,
    ]


def _estimate(estimate: Estimate) -> list[Tile]:
    peak = estimate.peak
    card = [
        Tile("tensors", gib(peak.allocated_bytes), f"at most {gib(peak.allocated_high_bytes)}"),
        Tile("reserved", gib(peak.reserved_bytes), f"at most {gib(peak.reserved_high_bytes)}"),
    ]
    return [
        Tile(
            "peak",
            gib(wording.judged_bytes(peak, estimate.device)),
            "measured" if estimate.measured else wording.interval(peak),
        ),
        *(card if estimate.device != "cpu" and peak.process_bytes else []),
        Tile("first step", gib(estimate.first_step_peak_bytes), "before optimizer states exist"),
        Tile(
            "step time",
            seconds(estimate.step_s),
            f"{'measured' if estimate.measured else 'predicted'} in {seconds(estimate.took_s)}",
        ),
    ]


def _verdict(verdict: Verdict) -> list[Tile]:
    slowdown = wording.slowdown_of(verdict)
    return [
        Tile("plain", gib(verdict.plain.peak_bytes), _fate(verdict, verdict.plain.survives_budget)),
        Tile("planned", gib(verdict.planned.peak_bytes), _fate(verdict, verdict.planned.survives_budget)),
        Tile(
            "memory",
            wording.less(verdict.plain.peak_bytes, verdict.planned.peak_bytes).removesuffix(" than plain"),
            "at the peak",
        ),
        Tile(
            "step time",
            ratio(slowdown),
            f"{seconds(verdict.plain.step_s_median)} plain, {seconds(verdict.planned.step_s_median)} planned",
        ),
        *[Tile(name, value) for name, value in wording.demo_text(verdict.demo or {}) if name != "report"],
    ]


def _fate(verdict: Verdict, survives: bool | None) -> str:
    if survives is None:
        return "no limit enforced"
    limit = f"under {gib(verdict.budget_bytes)}" if verdict.budget_bytes else "under the limit"
    return f"{'survives' if survives else 'dies'} {limit}"


def _run(run: Run) -> list[Tile]:
    budget = "no budget" if run.budget_bytes is None else f"of {gib(run.budget_bytes)}"
    done = [Tile("steps", str(run.steps), "none was left to do")] if wording.nothing_left(run) else [
        Tile("steps", str(run.steps), f"{seconds(run.step_s_median)} each"),
        Tile("loss", number(run.loss_last), f"from {number(run.loss_first)}"),
    ]
    return [
        *done,
        Tile("peak", gib(run.peak_bytes), budget),
        *[Tile(name.replace("_", " "), number(value), "evaluation") for name, value in run.evaluation.items()],
    ]
