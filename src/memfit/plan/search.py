"""The fastest mix that fits, and the smallest there is. The points do not depend on the budget, so a larger budget
never gives a slower plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memfit.apply import conflict, strategies
from memfit.core.strategy import Choice
from memfit.plan.checkpointing import Checkpointing
from memfit.plan.explore import Candidate, Explorer
from memfit.plan.recomputing import Recomputing
from memfit.plan.selection import Selection

_PLAIN_BONUS = 0.97  # a mix must be predicted at least this much faster than plain to replace it where plain fits
_TRIES = 24


@dataclass(frozen=True)
class Point:
    """A mix with bounds: its peak's upper end and seconds a step. `choices` are ready to apply."""

    choices: tuple[Choice, ...]
    high_bytes: int
    step_s: float

    @property
    def order(self) -> tuple[float, int, int, str]:
        return (self.step_s, len(self.choices), self.high_bytes, repr(self.choices))


def points(explorer: Explorer, candidates: list[Candidate], banned: frozenset[str]) -> list[Point]:
    """Every candidate with every useful selection of checkpointed modules, fastest first."""
    found: list[Point] = []
    for candidate in candidates:
        margin = candidate.simulation.peak.high_bytes - candidate.simulation.peak.allocated_bytes
        for selected in _selections(explorer, candidate, banned):
            chosen = (*candidate.choices, selected.choice) if selected.choice else candidate.choices
            found.append(Point(chosen, selected.peak_bytes + margin, candidate.simulation.step_s + selected.extra_s))
    plain_s = explorer.plain.simulation.step_s
    faster = [p for p in found if not p.choices or p.high_bytes < _plain_high(explorer) or p.step_s < _PLAIN_BONUS * plain_s]
    return sorted(faster, key=lambda point: point.order)


def _plain_high(explorer: Explorer) -> int:
    return explorer.plain.simulation.peak.high_bytes


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


def fastest(explorer: Explorer, ranked: list[Point], budget_bytes: int) -> Candidate | None:
    """The fastest point that, applied, traced and simulated, fits; None if none does."""
    for point in _worth_trying(ranked, budget_bytes):
        candidate = explorer.candidate(point.choices)
        if isinstance(candidate, Candidate) and candidate.simulation.peak.high_bytes <= budget_bytes:
            return candidate
    return None


def _worth_trying(ranked: list[Point], budget_bytes: int) -> Iterator[Point]:
    tried = 0
    for point in ranked:
        if point.high_bytes <= budget_bytes * 1.01:
            yield point
            tried += 1
            if tried == _TRIES:
                break
    yield from _lowest(ranked)


def smallest(explorer: Explorer, ranked: list[Point]) -> Candidate:
    """The candidate with the lowest simulated upper end among the lowest bounds."""
    best = explorer.plain
    for point in _lowest(ranked):
        candidate = explorer.candidate(point.choices)
        if isinstance(candidate, Candidate) and _key(candidate) < _key(best):
            best = candidate
    return best


def _lowest(ranked: list[Point]) -> list[Point]:
    """Points with the lowest bounds, of each way to treat saved tensors a few."""
    upwards = sorted(ranked, key=lambda p: (p.high_bytes, p.order))
    checkpointed = [p for p in upwards if any(c.name == "checkpoint" for c in p.choices)]
    return list({repr(p.choices): p for p in (*upwards[:3], *checkpointed[:2])}.values())


def _key(candidate: Candidate) -> tuple[int, float]:
    return candidate.simulation.peak.high_bytes, candidate.simulation.step_s


def frontier(ranked: list[Point]) -> list[Point]:
    """Points that no other beats in both peak and time."""
    kept: list[Point] = []
    for point in ranked:
        if not kept or point.high_bytes < kept[-1].high_bytes:
            kept.append(point)
    return kept
