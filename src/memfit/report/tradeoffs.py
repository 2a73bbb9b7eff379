"""What more memory would buy, and what less would cost: read off a plan's frontier."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.core.results import FrontierPoint, Plan
from memfit.core.units import GIB
from memfit.report.format import gib, ratio
from memfit.report.settings import mix_text

_NOTICEABLE = 0.005  # of plain's step time


def tradeoffs(plan: Plan) -> list[tuple[str, str]]:
    """`(name, sentence)` rows; none for a plan without a frontier or one that does not fit."""
    if not plan.fits or not plan.frontier:
        return []
    smaller = _next_smaller(plan)
    rows = [("one more GiB", _more(plan))]
    if smaller is not None:
        cost = f"{_peak(smaller)} at {ratio(smaller.slowdown)} plain's step time"
        rows.append(("next smaller", f"{cost}: {mix_text(smaller.strategies)}"))
    return rows


def _more(plan: Plan) -> str:
    """What the fastest point within one more GiB is, or that nothing is gained."""
    reach = [point for point in plan.frontier if point.peak_bytes <= plan.budget.device_bytes + GIB]
    best = _fastest(reach)
    if best is None or best.slowdown > plan.slowdown - _NOTICEABLE:
        return "buys nothing: the step would be no faster"
    return f"{ratio(best.slowdown)} plain's step time instead of {ratio(plan.slowdown)}: {mix_text(best.strategies)}"


def _next_smaller(plan: Plan) -> FrontierPoint | None:
    """The fastest point that is noticeably smaller than this plan."""
    own = plan.predicted.peak.high_bytes
    return _fastest([point for point in plan.frontier if point.peak_bytes < 0.97 * own])


def _fastest(points: Sequence[FrontierPoint]) -> FrontierPoint | None:
    return min(points, key=lambda point: (point.slowdown, point.peak_bytes), default=None)


def _peak(point: FrontierPoint) -> str:
    return gib(point.peak_bytes) if point.simulated else f"at most {gib(point.peak_bytes)}"
