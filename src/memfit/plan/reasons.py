"""Why a strategy is in a plan or out of it, with the numbers of the plan without it."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.core.strategy import Choice
from memfit.plan.explore import Candidate, Explorer
from memfit.plan.search import Point
from memfit.report.format import gib, percent


def spared(explorer: Explorer, chosen: Candidate, budget_bytes: int) -> Candidate:
    """The plan without every strategy whose removal still fits and is no slower; those first that did least alone."""
    for choice in sorted(chosen.choices, key=lambda choice: _effect_alone(explorer, choice)):
        without = _without(explorer, chosen, choice)
        if (without is not None and without.simulation.peak.high_bytes <= budget_bytes
                and without.simulation.step_s <= chosen.simulation.step_s):
            return spared(explorer, without, budget_bytes)
    return chosen


def why(explorer: Explorer, chosen: Candidate, choice: Choice, budget_bytes: int) -> str:
    """One line: what the plan would need without this strategy."""
    without = _without(explorer, chosen, choice)
    if without is None:
        return "the rest of the plan needs it"
    peak, alone = chosen.simulation.peak.high_bytes, without.simulation.peak.high_bytes
    slower = chosen.simulation.step_s / max(without.simulation.step_s, 1e-12) - 1
    cost = f"costs {percent(slower)} of the step" if slower >= 0.005 else (
        f"and the step is {percent(-slower)} faster" if slower <= -0.005 else "at no cost in time")
    if alone > budget_bytes:
        return f"without it the step needs {gib(alone)}, above the budget; with it {gib(peak)}; {cost}"
    return f"without it the step needs {gib(alone)}, with it {gib(peak)}; {cost}"


def left_out(name: str, ranked: Sequence[Point], chosen: Candidate, budget_bytes: int) -> str:
    """One line: what the fastest mix with this strategy would be."""
    with_it = [point for point in ranked if any(choice.name == name for choice in point.choices)]
    fitting = [point for point in with_it if point.high_bytes <= budget_bytes]
    if fitting:
        slower = fitting[0].step_s / max(chosen.simulation.step_s, 1e-12) - 1
        return f"not needed: the fastest fitting plan with it is {percent(max(slower, 0.0))} slower"
    if with_it:
        return f"does not bring the step under the budget: {gib(min(p.high_bytes for p in with_it))} at best with it"
    return "lowers the peak nowhere in this job"


def _effect_alone(explorer: Explorer, choice: Choice) -> float:
    """How much of the peak the strategy took in the smallest mix with it that was traced with and without it."""
    seen = min((one for one in explorer.seen() if choice in one.choices), key=lambda one: len(one.choices))
    below = next((one for one in explorer.seen() if one.choices == tuple(c for c in seen.choices if c != choice)), None)
    return 1.0 if below is None else 1.0 - seen.simulation.peak.high_bytes / max(below.simulation.peak.high_bytes, 1)


def _without(explorer: Explorer, chosen: Candidate, choice: Choice) -> Candidate | None:
    candidate = explorer.candidate(tuple(c for c in chosen.choices if c != choice))
    return candidate if isinstance(candidate, Candidate) else None
