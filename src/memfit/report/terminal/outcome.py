"""What happened, in a terminal: verdicts and runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table

from memfit.core.results import Run, Verdict
from memfit.report import wording
from memfit.report.format import gib, number, ratio, seconds
from memfit.report.settings import mix_text
from memfit.report.terminal import parts


def verdict_view(verdict: Verdict) -> Group:
    """The conclusion, plain beside planned, what was compared."""
    return Group(
        parts.title("verdict", "plain against planned"),
        parts.headline(wording.headline(verdict)),
        "",
        _sides(verdict),
        parts.section(
            f"Results ({verdict.fidelity}: {wording.FIDELITY.get(verdict.fidelity, '')})",
            parts.facts(wording.diffs(verdict)),
        ),
        *([parts.section("Run", parts.facts(wording.demo_text(verdict.demo)))] if verdict.demo else []),
        *parts.notes(verdict.notes),
    )


def _sides(verdict: Verdict) -> Table:
    plain, planned = verdict.plain, verdict.planned
    made = parts.table("", "plain", "planned", "", numbers=("plain", "planned"))
    made.add_row(
        "tensor peak",
        gib(plain.peak_bytes),
        gib(planned.peak_bytes),
        wording.less(plain.peak_bytes, planned.peak_bytes),
    )
    slowdown = wording.slowdown_of(verdict)
    made.add_row(
        "step time (median)",
        seconds(plain.step_s_median),
        seconds(planned.step_s_median),
        "" if slowdown is None else f"{ratio(slowdown)} plain",
    )
    limit = f"under {gib(verdict.budget_bytes)}" if verdict.budget_bytes else "under the budget"
    how = "limit enforced by the system" if verdict.enforced else "limit not enforced"
    made.add_row(limit, wording.fate(plain), wording.fate(planned), how)
    if verdict.rss_growth_bytes is not None:
        made.add_row("resident growth", "", gib(verdict.rss_growth_bytes), "")
    return made


def run_view(run: Run) -> Group:
    """The steps, their losses, and the peak against prediction and budget."""
    return Group(
        parts.title("run", _of(run.plan)),
        parts.headline(wording.headline(run)),
        "",
        parts.facts(wording.run_facts(run)),
        parts.section("Peak", _peaks(run)),
        *(
            [parts.section("Evaluation", parts.facts((name, number(value)) for name, value in run.evaluation.items()))]
            if run.evaluation
            else []
        ),
        *parts.notes(run.notes),
    )


def _of(plan: Mapping[str, Any]) -> str:
    target = str(plan.get("target", ""))
    return f"{target} on {plan.get('device', '')}, {mix_text(plan.get('strategies', ()))}" if target else ""


def _peaks(run: Run) -> Table:
    rows = [("measured", run.peak_bytes), ("predicted", run.predicted_peak_bytes), ("budget", run.budget_bytes)]
    sizes = [(name, size) for name, size in rows if size]
    longest = max((size for _, size in sizes), default=1)
    made = parts.table("", "size", " ", numbers=("size",))
    for name, size in sizes:
        made.add_row(name, gib(size), parts.Bar(size / longest, 40))
    return made
