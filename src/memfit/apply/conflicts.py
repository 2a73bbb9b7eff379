"""Which strategies cannot be in one plan, and why."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from memfit.apply.registry import strategy
from memfit.core.errors import UsageError
from memfit.core.strategy import Choice, Strategy


def conflict(choices: Sequence[Choice]) -> str | None:
    """One line naming the first pair that cannot be together, where they meet and why; None if all go together."""
    for one, other in combinations(choices, 2):
        reason = _pair(strategy(one.name), strategy(other.name))
        if reason:
            return reason
    return None



def check(choices: Sequence[Choice]) -> None:
    """Raise UsageError for strategies that are unknown, double or in conflict; its advice says what to drop."""
    for one, other in combinations(choices, 2):
        reason = _pair(strategy(one.name), strategy(other.name))
        if reason:
            raise UsageError(reason, f"drop {one.name} or {other.name} from the plan")
    for choice in choices:
        strategy(choice.name)


def _pair(one: Strategy, other: Strategy) -> str | None:
    if one.name == other.name:
        return f"{one.name} is in the plan twice: give it once, with one set of settings"
    both = f"{one.name} and {other.name} cannot be combined"
    shared = sorted(one.takes & other.takes)
    reason = one.conflicts.get(other.name) or other.conflicts.get(one.name)
    if reason:
        return f"{both} ({_place(one, other)}): {reason}"
    return f"{both}: each needs the {' and the '.join(shared)} for itself" if shared else None


def _place(one: Strategy, other: Strategy) -> str:
    """Where the two meet: what the one that names the conflict takes."""
    naming = one if other.name in one.conflicts else other
    return ", ".join(sorted(naming.takes)) or "the step"
