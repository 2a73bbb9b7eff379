"""The fastest mix that fits, and the smallest there is. The points do not depend on the budget, so a larger budget
never gives a slower plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from memfit.apply import conflict, strategies
from memfit.core.strategy import Choice
from memfit.plan.checkpointing import Checkpointing
from memfit.plan.explore import Candidate, Explorer
from memfit.plan.recomputing import Recomputing
from memfit.plan.selection import Selection
from memfit.plan.trust import trusted_seconds
from memfit.plan.variants import BY_TRACE

_TRIES = 24
_TRACED_EVENTS = 24_000  # small steps are cheap to trace: more of them are tried
_BOUND_ERROR = 1.02  # a bound this far above the best simulated peak is not worth a trace


@dataclass(frozen=True)
class Point:
    """A mix with bounds: its peak's upper end and seconds a step. `choices` are ready to apply."""

    choices: tuple[Choice, ...]
    high_bytes: int
    step_s: float

    @property
    def mix(self) -> str:
        """Its strategies, whatever was selected on their trace."""
        return repr([(c.name, None if c.name in BY_TRACE else c.settings) for c in self.choices])

    @property
    def order(self) -> tuple[float, int, int, str]:
        return (self.step_s, len(self.choices), self.high_bytes, repr(self.choices))


def points(explorer: Explorer, candidates: list[Candidate], banned: frozenset[str]) -> list[Point]:
    """Every candidate with every useful selection of checkpointed modules, fastest first."""
    found: list[Point] = []
    for candidate, seconds in zip(candidates, trusted_seconds(candidates, explorer.device), strict=True):
        margin = candidate.simulation.peak.high_bytes - candidate.simulation.peak.allocated_bytes
        for selected in _selections(explorer, candidate, banned):
            chosen = (*candidate.choices, selected.choice) if selected.choice else candidate.choices
            found.append(Point(chosen, selected.peak_bytes + margin, seconds + selected.extra_s))
    return sorted(found, key=lambda point: point.order)


def _selections(explorer: Explorer, candidate: Candidate, banned: frozenset[str]) -> list[Selection]:
    """Nothing dropped, and every useful set of modules to checkpoint or tensors to recompute."""
    found = [Selection(None, candidate.simulation.peak.allocated_bytes, 0.0)]
    if _composes(candidate, Choice("checkpoint", {"modules": []})):
        found += Checkpointing(candidate.trace, explorer.device, banned).selections()
    if _composes(candidate, Choice("recompute", {"tensors": []})):
        found += Recomputing(candidate.trace, explorer.device).selections()
    return found  # both families whole: their bounds may be a little off, so neither rules out the other


def _composes(candidate: Candidate, choice: Choice) -> bool:
    return choice.name in strategies() and conflict((*candidate.choices, choice)) is None


def fastest(explorer: Explorer, ranked: list[Point], budget_bytes: int) -> tuple[Candidate, float] | None:
    """The fastest point that, applied, traced and simulated, fits, with its seconds; None if none does."""
    tries = max(_TRIES, _TRACED_EVENTS // max(1, len(explorer.plain.trace.events)))
    above: dict[str, float] = {}  # by mix: how far its last simulation lay above the bound
    tried = 0
    for point in ranked:
        if point.high_bytes * above.get(point.mix, 1.0) > 1.01 * budget_bytes:
            continue
        candidate = explorer.candidate(point.choices)
        if isinstance(candidate, Candidate):
            if candidate.simulation.peak.high_bytes <= budget_bytes:
                return candidate, point.step_s
            above[point.mix] = max(1.0, candidate.simulation.peak.high_bytes / point.high_bytes)
        tried += 1
        if tried == tries:
            break
    lowest = smallest(explorer, ranked)
    if lowest.simulation.peak.high_bytes > budget_bytes:
        return None
    return lowest, next((p.step_s for p in ranked if p.choices == lowest.choices), lowest.simulation.step_s)


def smallest(explorer: Explorer, ranked: list[Point]) -> Candidate:
    """The candidate with the lowest simulated upper end, among the lowest bound of every mix."""
    best = explorer.plain
    for point in _lowest(ranked):
        if point.high_bytes > _BOUND_ERROR * best.simulation.peak.high_bytes:
            break
        candidate = explorer.candidate(point.choices)
        if isinstance(candidate, Candidate) and _key(candidate) < _key(best):
            best = candidate
    return best


def _lowest(ranked: list[Point]) -> list[Point]:
    """Of every mix the two points with the lowest bounds, upwards."""
    seen: Counter[str] = Counter()
    kept: list[Point] = []
    for point in sorted(ranked, key=lambda p: (p.high_bytes, p.order)):
        seen[point.mix] += 1
        if seen[point.mix] <= 2:
            kept.append(point)
    return kept


def _key(candidate: Candidate) -> tuple[int, float]:
    return candidate.simulation.peak.high_bytes, candidate.simulation.step_s
