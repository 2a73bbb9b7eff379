"""What a strategy declares and does, and how its effects are undone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from memfit.core.fidelity import Fidelity

if TYPE_CHECKING:
    from memfit.core.device import Device
    from memfit.core.trace import Trace
    from memfit.jobs import Job

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """A strategy with its settings, as a plan holds it (JSON values only)."""

    name: str
    settings: Settings = field(default_factory=dict)


class Undo:
    """Takes back what was applied, last first; a failure half-way through applying unwinds the same way."""

    def __init__(self) -> None:
        self._steps: list[Callable[[], None]] = []

    def push(self, step: Callable[[], None]) -> None:
        """Register the reverse of something just done."""
        self._steps.append(step)

    def __call__(self) -> None:
        while self._steps:
            self._steps.pop()()


class Strategy(Protocol):
    """One way to need less memory. It never states bytes: it is applied to a fake job, traced and simulated.

    `takes` is what it uses exclusively: any of `module forward`, `saved tensors`, `gradient lifetime`,
    `optimizer state`, `parameter storage`, `batch`, `loss`, `precision`. `after` names strategies that are applied
    before it when both are in a plan. `conflicts` maps another strategy's name to the reason why both cannot be.
    `settings` are the names that each choice of it gives a value to.
    """

    name: str
    settings: tuple[str, ...]
    takes: frozenset[str]
    after: tuple[str, ...]
    conflicts: Mapping[str, str]

    def excluded(self, job: Job, target: Device) -> str | None:
        """Why this strategy cannot serve the job on the target, in one line; None where it can."""
        ...

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        """What the result will be, for this job."""
        ...

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        """Settings worth trying, gentlest first, read off the plain trace."""
        ...

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        """Change the job (real or fake), registering the undo of each change as it is made."""
        ...

    def code(self, settings: Settings) -> CodePart | None:
        """The same in plain PyTorch, or None where that needs memfit."""
        ...


@runtime_checkable
class HasOptional(Protocol):
    """A strategy with settings that a choice may leave out."""

    optional: tuple[str, ...]


@runtime_checkable
class ActsOnTrace(Protocol):
    """A strategy whose settings name what a step has: that is looked for before a plan that was edited is taken."""

    def absent(self, settings: Settings, trace: Trace) -> str | None:
        """One line on what a step without this strategy, which the trace is of, does not have; None if it has all."""
        ...


@runtime_checkable
class ByHand(Protocol):
    """A strategy that the search does not choose; `by_hand` says so in one line, and what to do."""

    by_hand: str


@runtime_checkable
class WarmsUp(Protocol):
    """A strategy that makes something once a process (an import, a compiler's tables), which is no part of a step."""

    def warm_up(self) -> None:
        """Make it now, before a limit is set above the process."""
        ...


@dataclass(frozen=True)
class CodePart:
    """A strategy as plain PyTorch source: `prelude` (imports, helpers), `setup` (lines once `model`, `loss` and
    `optimizer` exist), `context` (an expression entered around each forward), and `micro_batches`. `scaler` is an
    expression for what scales losses; `in_backward` names a function `(optimizer, group, parameter)` of the prelude that
    hooks call, and that does nothing while its attribute `waiting` is true: such a source cannot clip."""

    prelude: str = ""
    setup: str = ""
    context: str = ""
    micro_batches: int = 1
    scaler: str = ""
    in_backward: str = ""
