"""What a result says in one line, and what follows from its numbers: the same in a terminal and on a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memfit.core.results import AtPeak, Estimate, Peak, Plan, Result, Run, Side, Timeline, Verdict
from memfit.report.format import difference, gib, number, ratio, seconds, yes_no

FIDELITY = {
    "bitwise": "the same bits",
    "reordered": "the same mathematics, other rounding",
    "resampled": "the same distribution, other random draws",
    "reduced": "lower precision",
    "adapted": "another model or objective",
}


@dataclass(frozen=True)
class Headline:
    """`word` carries the meaning (never colour alone); `good` is None where there is nothing to judge."""

    word: str
    text: str
    good: bool | None = None


def headline(result: Result) -> Headline:
    """The one line that matters."""
    match result:
        case Plan():
            return _plan(result)
        case Verdict():
            return _verdict(result)
        case Run():
            return _run(result)
        case Estimate():
            return _estimate(result)
        case _:
            return Headline(result.schema.removeprefix("memfit.").split("/")[0].upper(), "")


def judged_bytes(peak: Peak, device: str) -> int:
    """The figure that budgets are compared with: tensors on `cpu`, what the driver shows elsewhere."""
    return peak.allocated_bytes if device == "cpu" or not peak.process_bytes else peak.process_bytes


def interval(peak: Peak) -> str:
    """`between 1.20 GiB and 1.25 GiB`, or `exactly so` where both ends are one."""
    if peak.low_bytes == peak.high_bytes:
        return "exactly so"
    return f"between {gib(peak.low_bytes)} and {gib(peak.high_bytes)}"


def less(before_bytes: int, after_bytes: int) -> str:
    """`4.09x less than plain`; says `more` where it is more."""
    if before_bytes <= 0 or after_bytes <= 0:
        return "n/a"
    if before_bytes >= after_bytes:
        return (
            "as much as plain"
            if before_bytes == after_bytes
            else f"{ratio(before_bytes / after_bytes)} less than plain"
        )
    return f"{ratio(after_bytes / before_bytes)} as much as plain"


def place(at: AtPeak | None) -> str:
    """`backward, encoder.layer.3.mlp, aten.bmm`; parts that are unknown left out."""
    return ", ".join(part for part in (at.phase, at.module, at.op) if part) if at else ""


def chosen_index(plan: Plan) -> int | None:
    """Which point of the frontier is this plan: the one with its strategies, else None."""
    own = [(one.name, dict(one.settings)) for one in plan.strategies]
    for index, point in enumerate(plan.frontier):
        if [(str(one["name"]), dict(one.get("settings") or {})) for one in point.strategies] == own:
            return index
    return None


def at_peak_of(timeline: Timeline) -> Mapping[str, int]:
    """Bytes by category at the peak: as stated, else at the largest sample. Empty for an empty timeline."""
    if timeline.at_peak and timeline.at_peak.by_category:
        return timeline.at_peak.by_category
    if not timeline.x:
        return {}
    totals = [sum(values[i] for values in timeline.by_category.values()) for i in range(len(timeline.x))]
    nearest = max(range(len(totals)), key=lambda i: (totals[i], -abs(timeline.x[i] - timeline.peak_x)))
    return {name: values[nearest] for name, values in timeline.by_category.items()}


def slowdown_of(verdict: Verdict) -> float | None:
    """Planned step time over plain's; None where plain's is unknown."""
    if verdict.slowdown > 0:
        return verdict.slowdown
    plain_s = verdict.plain.step_s_median
    return verdict.planned.step_s_median / plain_s if plain_s > 0 else None


def fate(side: Side) -> str:
    """What the limit did to one side of a verdict."""
    return {True: "survives", False: "dies", None: "not tried"}[side.survives_budget]


def diffs(verdict: Verdict) -> list[tuple[str, str]]:
    """What was compared, and how far apart it is."""
    return [
        ("loss, largest relative difference", difference(verdict.max_rel_loss_diff)),
        ("gradients, largest relative difference", difference(verdict.max_rel_grad_diff)),
        ("parameters, largest relative difference", difference(verdict.max_rel_param_diff)),
        ("buffers equal", yes_no(verdict.buffers_equal)),
        ("the same parameters get gradients", yes_no(verdict.grad_set_equal)),
    ]


def demo_text(demo: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a demonstration adds to its verdict."""
    rows = (
        [("loss", f"{number(demo['loss_first'])} -> {number(demo.get('loss_last'))}")] if "loss_first" in demo else []
    )
    if "accuracy" in demo:
        rows.append(("accuracy on held-out data", number(demo["accuracy"])))
    return rows + ([("report", str(demo["report"]))] if demo.get("report") else [])


def is_own(plan: Plan) -> bool:
    """Whether a plan that does not fit is one of its own (from a file), and not the smallest that there is."""
    return not plan.fits and plan.floor_bytes <= plan.budget.device_bytes


def _plan(plan: Plan) -> Headline:
    need, budget = judged_bytes(plan.predicted.peak, plan.device), plan.budget.device_bytes
    if is_own(plan):
        text = f"this plan needs up to {gib(plan.predicted.peak.high_bytes)}, its budget is {gib(budget)}; a new plan may fit"
        return Headline("DOES NOT FIT", text, good=False)
    if not plan.fits:
        return Headline(
            "DOES NOT FIT",
            f"the smallest allowed plan needs {gib(plan.floor_bytes)}, the budget is {gib(budget)}",
            good=False,
        )
    base = judged_bytes(plan.baseline.peak, plan.device)
    if not plan.strategies:
        return Headline("FITS AS IT IS", f"plain training needs {gib(need)} of {gib(budget)}", good=True)
    return Headline(
        "FITS", f"{gib(need)} of {gib(budget)}, {less(base, need)}, {ratio(plan.slowdown)} its step time", good=True
    )


def _verdict(verdict: Verdict) -> Headline:
    good = verdict.same_result and verdict.within_budget and verdict.planned.survives_budget is not False
    word = "SAME RESULT" if verdict.same_result else "NOT THE SAME RESULT"
    word += ", WITHIN BUDGET" if verdict.within_budget else ", OVER BUDGET"
    return Headline(word, _conclusion(verdict), good)


def _conclusion(verdict: Verdict) -> str:
    limit = f"in {gib(verdict.budget_bytes)} " if verdict.budget_bytes else ""
    if verdict.plain.survives_budget is None and verdict.planned.survives_budget is None:
        ends = f"{limit}planned needs {gib(verdict.planned.peak_bytes)}, plain {gib(verdict.plain.peak_bytes)}"
    else:
        ends = f"{limit}plain {fate(verdict.plain)}, planned {fate(verdict.planned)}"
    slowdown = slowdown_of(verdict)
    return ends if slowdown is None else f"{ends}, at {ratio(slowdown)} the step time"


def _run(run: Run) -> Headline:
    if nothing_left(run):
        return Headline("NOTHING LEFT TO DO", f"the run is at step {run.steps}")
    done = f"{run.steps} steps, {seconds(run.step_s_median)} each, peak {gib(run.peak_bytes)}"
    if run.budget_bytes is None or run.within_budget is None:
        return Headline("DONE", done)
    word = "WITHIN BUDGET" if run.within_budget else "OVER BUDGET"
    return Headline(word, f"{done} of {gib(run.budget_bytes)}", run.within_budget)


def _estimate(estimate: Estimate) -> Headline:
    how = "measured by one real step" if estimate.measured else interval(estimate.peak)
    return Headline("PEAK", f"{gib(judged_bytes(estimate.peak, estimate.device))}, {how}")


def shortage(estimate: Estimate) -> str:
    """By how much a step that does not fit exceeds its card, whose `capacity_bytes` is known."""
    room = estimate.capacity_bytes or 0
    short, at_most = judged_bytes(estimate.peak, estimate.device) - room, estimate.peak.high_bytes - room
    if short > 0:
        return f"does not fit, {gib(short)} short"
    return f"may not fit, up to {gib(at_most)} short" if at_most > 0 else "does not fit"  # its free memory is in pieces


def nothing_left(run: Run) -> bool:
    """Whether the run went on from its end, so that no step was made and none was timed."""
    return not run.step_s_median


def run_facts(run: Run) -> list[tuple[str, str]]:
    """The figures of a run beside its peaks."""
    recovered = [("out of memory", f"met and recovered {run.oom_recovered} times")] if run.oom_recovered else []
    done = [("steps", f"{run.steps}: none was left to do")] if nothing_left(run) else [
        ("steps", str(run.steps)),
        ("loss", f"{number(run.loss_first)} -> {number(run.loss_last)}"),
        ("step time", f"{seconds(run.step_s_median)} (median), {run.samples_per_s:.4g} samples per second"),
    ]
    return [
        *done,
        ("resident peak", gib(run.rss_peak_bytes)),
        ("limit", "enforced by the system" if run.enforced else "not enforced"),
        *recovered,
    ]
