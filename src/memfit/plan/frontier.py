"""From plain to smallest: the mixes that no other beats in both peak and time."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.core.results import FrontierPoint
from memfit.core.strategy import Choice
from memfit.plan.explore import Explorer
from memfit.plan.find import Found
from memfit.plan.search import Point


def frontier(explorer: Explorer, found: Found) -> tuple[FrontierPoint, ...]:
    """Fastest first, the chosen mix always among them. A mix that was simulated has its simulated peak; on the CPU the others
    have their bounds. A card's bounds are of tensors, and its peaks have gaps and workspaces: they are not shown together."""
    plain_s = max(explorer.plain.simulation.step_s, 1e-12)
    simulated = _simulated(explorer, found)
    bounds = [point for point in found.ranked if point.high_bytes >= found.floor_bytes and _key(point.choices) not in simulated]
    points = [*simulated.values(), *(bounds if explorer.device.kind == "cpu" else ())]
    kept = [point for point in _unbeaten(points) if point.choices != found.chosen.choices]
    own = simulated[_key(found.chosen.choices)]
    return tuple(
        FrontierPoint(point.high_bytes, point.step_s / plain_s, _named(point.choices), _key(point.choices) in simulated)
        for point in sorted([*kept, own], key=lambda point: (point.step_s, point.high_bytes)))


def _simulated(explorer: Explorer, found: Found) -> dict[str, Point]:
    """By choices. Their seconds are those that the search went by."""
    seconds = {_key(point.choices): point.step_s for point in found.ranked} | {_key(found.chosen.choices): found.step_s}
    seen = {_key(one.choices): one for one in explorer.seen()}
    return {key: Point(one.choices, one.simulation.peak.high_bytes, seconds.get(key, one.simulation.step_s))
            for key, one in seen.items()}


def _unbeaten(points: Sequence[Point]) -> list[Point]:
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: point.order):
        if not kept or point.high_bytes < kept[-1].high_bytes:
            kept.append(point)
    return kept


def _key(choices: Sequence[Choice]) -> str:
    return repr(tuple(choices))


def _named(choices: Sequence[Choice]) -> tuple[dict[str, object], ...]:
    return tuple({"name": c.name, "settings": dict(c.settings)} for c in choices)
