"""A plan in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.core.results import FrontierPoint, Plan, Predicted
from memfit.report import wording
from memfit.report.format import gib, ratio, seconds
from memfit.report.settings import mix_text, settings_text
from memfit.report.terminal import parts
from memfit.report.tradeoffs import tradeoffs

_MOST_POINTS = 12


def plan_view(plan: Plan, *, every_point: bool = False) -> Group:
    """Headline, plain against planned, what is used and why, what is not, the frontier (whole or thinned), limits."""
    used = "Strategies, in this order" if plan.fits or wording.is_own(plan) else "Strategies of the smallest plan"
    return Group(
        parts.title("plan", plan.target, "on", plan.device),
        parts.headline(wording.headline(plan)),
        parts.section("Predicted", _predicted(plan)),
        *([parts.section(used, _strategies(plan))] if plan.strategies else []),
        *([parts.section("Not used", _rejected(plan))] if plan.rejected else []),
        *([parts.section("From plain to smallest", _frontier(plan, every_point))] if plan.frontier else []),
        parts.section("Limits", _limits(plan)),
        *parts.notes(plan.notes),
    )


def _predicted(plan: Plan) -> Table:
    made = parts.table("", "peak", "at most", "step time", numbers=("peak", "at most", "step time"))
    _predicted_row(made, "plain", plan.baseline, plan.device)
    _predicted_row(made, "this plan" if plan.fits or wording.is_own(plan) else "smallest plan", plan.predicted, plan.device)
    return made


def _predicted_row(made: Table, name: str, what: Predicted, device: str) -> None:
    made.add_row(name, gib(wording.judged_bytes(what.peak, device)), gib(what.peak.high_bytes), seconds(what.step_s))


def _strategies(plan: Plan) -> Table:
    """Name, settings and fidelity, the reason under them: long reasons stay readable in a narrow terminal."""
    made = Table.grid(padding=(0, 1))
    made.add_column(justify="right")
    made.add_column(overflow="fold")
    for order, one in enumerate(plan.strategies, start=1):
        settings = f" {settings_text(one.settings)}" if one.settings else ""
        made.add_row(f"{order}.", Text.assemble((one.name, "bold"), settings, (f"  ({one.fidelity})", parts.QUIET)))
        made.add_row("", Text(one.why))
    return made


def _rejected(plan: Plan) -> Table:
    made = parts.table("strategy", "reason")
    for one in plan.rejected:
        made.add_row(one.name, Text(one.reason))
    return made


def _frontier(plan: Plan, every_point: bool) -> RenderableType:
    made = parts.table("", "peak", "step time", "strategies", numbers=("peak", "step time"))
    chosen = wording.chosen_index(plan)
    kept = range(len(plan.frontier)) if every_point else thinned(len(plan.frontier), chosen)
    for index in kept:
        point = plan.frontier[index]
        made.add_row(
            "->" if index == chosen else "", _peak(point), ratio(point.slowdown), Text(mix_text(point.strategies))
        )
    legend = _frontier_legend(plan, chosen, len(plan.frontier) - len(kept))
    return Group(made, Text(legend, style=parts.QUIET)) if legend else made


def _peak(point: FrontierPoint) -> str:
    return gib(point.peak_bytes) if point.simulated else f"<= {gib(point.peak_bytes)}"


def _frontier_legend(plan: Plan, chosen: int | None, left_out: int) -> str:
    said = ["-> this plan"] if chosen is not None else []
    said += ["<= a bound, not simulated"] if any(not point.simulated for point in plan.frontier) else []
    said += [f"{left_out} more: --frontier shows them"] if left_out else []
    return "; ".join(said)


def thinned(count: int, keep: int | None) -> Sequence[int]:
    """At most `_MOST_POINTS` of `count` indices, evenly spread, with both ends and `keep` among them."""
    if count <= _MOST_POINTS:
        return range(count)
    spread = {round(i * (count - 1) / (_MOST_POINTS - 1)) for i in range(_MOST_POINTS)}
    if keep is not None and keep not in spread:
        spread.remove(min(spread - {0, count - 1}, key=lambda one: abs(one - keep)))
        spread.add(keep)
    return sorted(spread)


def _limits(plan: Plan) -> Table:
    places = (("host budget", plan.budget.host_bytes), ("disk budget", plan.budget.disk_bytes))
    batch = [("largest batch", str(plan.largest_batch))] if plan.largest_batch is not None else []
    floor = [("floor", f"{gib(plan.floor_bytes)}, the smallest that this job can be brought to at this fidelity")]
    floor = floor if plan.floor_bytes else []  # 0: not known
    return parts.facts(
        [
            ("budget", gib(plan.budget.device_bytes)),
            *((name, gib(nbytes)) for name, nbytes in places if nbytes is not None),
            *floor,
            *tradeoffs(plan),
            *batch,
            ("fidelity", f"{plan.fidelity}: {wording.FIDELITY.get(plan.fidelity, '')}".removesuffix(": ")),
            ("planned in", seconds(plan.took_s)),
        ]
    )
