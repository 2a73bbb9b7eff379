"""The search as a whole: mixes, what to drop on each, the fastest that fits, the smallest; or, interrupted, the best so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memfit.core.fidelity import Fidelity
from memfit.core.results import Rejected
from memfit.plan.explore import Candidate, Explorer
from memfit.plan.reasons import spared
from memfit.plan.search import Point, fastest, points, smallest
from memfit.plan.trust import trusted_seconds
from memfit.plan.variants import variants
from memfit.strategies.exact.checkpoint import unfit


@dataclass(frozen=True)
class Found:
    """The chosen mix with its seconds (`fits` false: it is the smallest, and does not fit), the smallest, and all points."""

    chosen: Candidate
    step_s: float
    fits: bool
    floor: Candidate
    ranked: list[Point]
    rejected: Sequence[Rejected]
    notes: tuple[str, ...] = ()

    @property
    def floor_bytes(self) -> int:
        return min(self.floor.simulation.peak.high_bytes, self.chosen.simulation.peak.high_bytes)


def find(explorer: Explorer, allowed: Fidelity, barred: dict[str, str], budget_bytes: int) -> Found:
    """Interrupted (Ctrl-C), it gives the fastest mix looked at so far, with a note; KeyboardInterrupt if none fits."""
    try:
        return _searched(explorer, allowed, barred, budget_bytes)
    except KeyboardInterrupt:
        found = _best_so_far(explorer, budget_bytes)
        if found is None:
            raise
        return found


def _searched(explorer: Explorer, allowed: Fidelity, barred: dict[str, str], budget_bytes: int) -> Found:
    mixes = variants(explorer, allowed, barred)
    kept_whole = frozenset(unfit(explorer.fake, explorer.plain.trace))  # not to be run again, by checkpoint's own word
    ranked = points(explorer, mixes.candidates, kept_whole)
    floor = smallest(explorer, ranked)
    best = fastest(explorer, ranked, budget_bytes)
    if best is None:
        return Found(floor, floor.simulation.step_s, False, floor, ranked, mixes.rejected)
    candidate, step_s = best
    chosen = spared(explorer, candidate, budget_bytes)
    if chosen is not candidate:
        step_s = min(step_s, chosen.simulation.step_s)
    return Found(chosen, step_s, True, floor, ranked, mixes.rejected)


def _best_so_far(explorer: Explorer, budget_bytes: int) -> Found | None:
    seen = explorer.seen()
    seconds = trusted_seconds(seen, explorer.device)
    ranked = sorted((Point(one.choices, one.simulation.peak.high_bytes, step_s)
                     for one, step_s in zip(seen, seconds, strict=True)), key=lambda point: point.order)
    best = next((point for point in ranked if point.high_bytes <= budget_bytes), None)
    if best is None:
        return None
    chosen = next(one for one in seen if one.choices == best.choices)
    floor = min(seen, key=lambda one: one.simulation.peak.high_bytes)
    note = f"interrupted: the best of the {len(seen)} mixes looked at so far; floor and frontier are of those"
    return Found(chosen, best.step_s, True, floor, ranked, (), (note,))
