"""Errors a user can meet. Each carries its exit code, one line of what happened, and what to do next.

    MemfitError (1)
    ├── UsageError (2)         bad input: target, size, plan file, batch, loss, optimizer
    │   └── Untraceable (2)    the step cannot be traced on fake tensors
    ├── DoesNotFit (3)         no plan fits the budget; carries the plan with its floor
    ├── RanOutOfMemory (4)
    ├── NotSameResult (5)
    ├── OverBudget (6)
    └── Interrupted (130)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.core.results import Plan


class MemfitError(Exception):
    """One line for the user. `advice` says what to do next; `code` is the exit code.

    `document` is what is known of a command that ended so, if anything: it stands in place of `to_dict()`.
    """

    code = 1
    document: Mapping[str, object] | None = None

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def to_dict(self) -> dict[str, object]:
        return {"schema": "memfit.error/1", "code": self.code, "message": self.message, "advice": self.advice}


class UsageError(MemfitError):
    """Bad usage or bad input."""

    code = 2


class Untraceable(UsageError):
    """The step cannot be traced on fake tensors; the message names the operator and the module."""


class DoesNotFit(MemfitError):
    """No allowed plan fits the budget; `plan.floor_bytes` says what would."""

    code = 3

    def __init__(self, message: str, advice: str = "", plan: Plan | None = None) -> None:
        super().__init__(message, advice)
        self.plan = plan


class RanOutOfMemory(MemfitError):
    """The process met the limit."""

    code = 4


class NotSameResult(MemfitError):
    """The planned run's result is not the plain run's, at the promised fidelity."""

    code = 5


class OverBudget(MemfitError):
    """Alive, but above the budget."""

    code = 6


class Interrupted(MemfitError):
    """Ctrl-C; what was saved before is whole."""

    code = 130
