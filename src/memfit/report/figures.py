"""Which pictures belong to which result, each at the widths that a page needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memfit.core.results import Estimate, FrontierPoint, Plan, Result, Run, Verdict
from memfit.report import svg, wording

WIDE, PHONE, NOTEBOOK = 920, 350, 720
Widths = tuple[int, ...]


@dataclass(frozen=True)
class Figure:
    """One picture under a heading; `variants` are the same at different widths, the widest first."""

    title: str
    caption: str
    variants: tuple[str, ...]


def figures(result: Result, widths: Widths) -> list[Figure]:
    """The pictures of a result, in order; those with nothing to show are left out."""
    match result:
        case Plan():
            made = _plan(result, widths)
        case Estimate():
            made = _estimate(result, widths)
        case Verdict():
            rows = [("plain", result.plain.peak_bytes), ("planned", result.planned.peak_bytes)]
            made = [_peaks(rows, result.budget_bytes or None, widths)]
        case Run():
            rows = [("measured", result.peak_bytes), ("predicted", result.predicted_peak_bytes)]
            made = [_peaks([row for row in rows if row[1]], result.budget_bytes, widths)]
        case _:
            made = []
    return [figure for figure in made if figure.variants]


def loss_figure(series: Mapping[str, Sequence[float]], widths: Widths) -> list[Figure]:
    """The losses as a picture, or nothing where there are none."""
    made = _figure("Loss", "One value a step.", lambda width: svg.losses(series, width=width), widths)
    return [made] if made.variants else []


def chosen_point(plan: Plan) -> FrontierPoint | None:
    """The plan as a point of its frontier: the one that has its strategies, else made from its prediction."""
    if not plan.fits:
        return None
    index = wording.chosen_index(plan)
    if index is not None:
        return plan.frontier[index]
    mix = tuple({"name": one.name, "settings": one.settings} for one in plan.strategies)
    return FrontierPoint(wording.judged_bytes(plan.predicted.peak, plan.device), plan.slowdown, mix, simulated=True)


def _figure(title: str, caption: str, draw: Callable[[int], str], widths: Widths) -> Figure:
    return Figure(title, caption, tuple(drawn for drawn in map(draw, widths) if drawn))


def _peaks(rows: list[tuple[str, int]], budget_bytes: int | None, widths: Widths) -> Figure:
    return _figure("Peak memory", "", lambda width: svg.peaks(rows, budget_bytes=budget_bytes, width=width), widths)


def _plan(plan: Plan, widths: Widths) -> list[Figure]:
    made: list[Figure] = []
    base, own, budget = plan.baseline_timeline, plan.timeline, plan.budget.device_bytes
    if own:
        outline = base if plan.strategies else None
        caption = "Tensor bytes by category. " + ("Plain's step is drawn to the same width." if outline else "")
        made.append(
            _figure(
                "Memory over one training step",
                caption,
                lambda width: svg.timeline(own, budget_bytes=budget, plain=outline, width=width),
                widths,
            )
        )
        sides = {"plain": wording.at_peak_of(base)} if base and plan.strategies else {}
        sides["planned"] = wording.at_peak_of(own)
        made.append(_figure("What is alive at the peak", "", lambda width: svg.breakdown(sides, width=width), widths))
    if plan.frontier:
        made.append(
            _figure(
                "What each saving costs",
                "The line is the fastest that each budget allows.",
                lambda width: svg.frontier(
                    plan.frontier,
                    chosen=chosen_point(plan),
                    budget_bytes=budget,
                    floor_bytes=plan.floor_bytes,
                    width=width,
                ),
                widths,
            )
        )
    return made


def _estimate(estimate: Estimate, widths: Widths) -> list[Figure]:
    own, sides = estimate.timeline, {"peak": estimate.at_peak.by_category}
    over = (
        [
            _figure(
                "Memory over one training step",
                "Tensor bytes by category.",
                lambda width: svg.timeline(own, width=width),
                widths,
            )
        ]
        if own
        else []
    )
    return [*over, _figure("What is alive at the peak", "", lambda width: svg.breakdown(sides, width=width), widths)]
