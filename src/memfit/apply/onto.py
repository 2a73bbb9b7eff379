"""Choices onto a job: the same code for a real job and for a fake one."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.apply.conflicts import check
from memfit.apply.order import ordered
from memfit.apply.registry import strategy
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Choice, HasOptional, Undo
from memfit.jobs import Job


def apply_choices(job: Job, choices: Sequence[Choice]) -> Undo:
    """Apply every choice, in order. The result undoes all of them; a failure half-way unwinds what was done.

    Raises UsageError for unknown or conflicting strategies, and for settings or jobs that one cannot serve.
    """
    check(choices)
    undo = Undo()
    try:
        for choice in ordered(choices):
            check_settings(choice)
            strategy(choice.name).apply(job, choice.settings, undo)
    except BaseException:
        undo()
        raise
    return undo


def check_settings(choice: Choice) -> None:
    """Raise UsageError for a setting that the strategy does not have, or one that it lacks."""
    chosen = strategy(choice.name)
    required = chosen.settings
    known = (*required, *(chosen.optional if isinstance(chosen, HasOptional) else ()))
    unknown = [name for name in choice.settings if name not in known]
    lacking = [name for name in required if name not in choice.settings]
    if unknown or lacking:
        wrong = f"no setting {unknown[0]!r}" if unknown else f"a setting {lacking[0]!r}, which is not given"
        raise UsageError(f"{choice.name} has {wrong}", f"its settings: {', '.join(known) or 'none'}")


def plan_fidelity(job: Job, choices: Sequence[Choice]) -> Fidelity:
    """What the result of the whole plan is, for this job: the furthest of its parts."""
    return Fidelity.furthest(*(strategy(choice.name).fidelity(job, choice.settings) for choice in choices))
