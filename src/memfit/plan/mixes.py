"""Which mixes of several strategies to trace, where there are more than can be: those that look best by what each strategy
did alone. That only ranks them: a mix counts by its own trace.

What a strategy does to what is held anyway (parameters, gradients, states, temporaries) adds up over a mix; what it does to
activations and to time multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memfit.apply import conflict
from memfit.core.strategy import Choice
from memfit.plan.explore import Candidate
from memfit.trace.usage import usage

Columns = npt.NDArray[np.float64]
_PHASES = ("forward", "backward", "optimizer")
_PRICES = (1.0, 0.0, 3.0, 0.4, 0.15, 0.05)  # what a share of time counts against a share of memory
_EACH = 0.005  # what one strategy more has to be worth, as a share
_BEAM = 48  # partial mixes kept for each price and figure


@dataclass(frozen=True)
class Effect:
    """What a choice did alone: `held` bytes added by phase, shares of activations (by phase) and of time that were left."""

    choice: Choice
    held: Columns
    activations: Columns
    seconds: float


@dataclass
class _Partial:
    """Partial mixes as columns, a row each."""

    mixes: list[tuple[Choice, ...]]
    held: Columns
    activations: Columns
    seconds: Columns

    def taking(self, rows: Sequence[int]) -> _Partial:
        kept = list(rows)
        return _Partial([self.mixes[row] for row in kept], self.held[kept], self.activations[kept], self.seconds[kept])


def effect(choice: Choice, alone: Candidate, without: Candidate) -> Effect:
    """Of one choice, seen on a trace with it and one without it."""
    after, before = _profile(alone), _profile(without)
    share = (after[1] + 1.0) / (before[1] + 1.0)
    return Effect(choice, after[0] - before[0], share, alone.simulation.step_s / max(without.simulation.step_s, 1e-12))


def promising(base: Candidate, options: Sequence[Sequence[Effect]], most: int) -> list[tuple[Choice, ...]]:
    """At most `most` compatible mixes of two and more choices, one of each group of options: all, small ones first, where
    there are no more than that; else the best at each price of time, by their peak and by what checkpointing cannot lower."""
    held, activations = _profile(base)
    found = _Partial([()], held[None], activations[None], np.ones(1))
    for effects in options:
        found = _thinned(_extended(found, effects), base, most)
    several = found.taking([row for row, mix in enumerate(found.mixes) if len(mix) > 1])
    return sorted(several.taking(_best(several, most)).mixes, key=lambda mix: (len(mix), repr(mix)))


def _profile(candidate: Candidate) -> tuple[Columns, Columns]:
    """By phase: the peak of what is not activations, and what activations add to it."""
    use, trace = usage(candidate.trace), candidate.trace
    change = np.zeros(len(use.curve) + 1, np.int64)
    for index, storage in enumerate(trace.storages):
        if storage.category == "activations":
            change[use.birth[index]] += storage.nbytes
            change[use.death[index]] -= storage.nbytes
    rest = use.curve - np.cumsum(change[:-1])
    held, whole = np.zeros(len(_PHASES)), np.zeros(len(_PHASES))
    for place, (name, start) in enumerate(trace.phases):
        stop = trace.phases[place + 1][1] if place + 1 < len(trace.phases) else len(use.curve)
        if stop > start and name in _PHASES:
            column = _PHASES.index(name)
            held[column] = max(held[column], rest[start:stop].max())
            whole[column] = max(whole[column], use.curve[start:stop].max())
    return held, np.maximum(whole - held, 0.0)


def _extended(found: _Partial, effects: Sequence[Effect]) -> _Partial:
    """The partial mixes without the group, and with each of its options that they go with."""
    parts = [found]
    for one in effects:
        rows = [row for row, mix in enumerate(found.mixes) if conflict((*mix, one.choice)) is None]
        with_it = found.taking(rows)
        parts.append(_Partial([(*mix, one.choice) for mix in with_it.mixes], with_it.held + one.held,
                              with_it.activations * one.activations, with_it.seconds * one.seconds))
    return _Partial([mix for part in parts for mix in part.mixes], np.concatenate([part.held for part in parts]),
                    np.concatenate([part.activations for part in parts]), np.concatenate([part.seconds for part in parts]))


def _thinned(found: _Partial, base: Candidate, most: int) -> _Partial:
    limit = max(_BEAM * len(_PRICES) * 2, most + 1)
    if len(found.mixes) <= limit:
        return found
    return found.taking(sorted(_best(found, limit)))


def _best(found: _Partial, most: int) -> list[int]:
    """The best rows of every order in turn, until there are enough."""
    if len(found.mixes) <= most:
        return list(range(len(found.mixes)))
    figures = [(found.held + found.activations).max(1), found.held.max(1)]
    parts = _EACH * np.array([len(mix) for mix in found.mixes])
    orders = [np.argsort(np.log(np.maximum(figure, 1.0)) + price * np.log(found.seconds) + parts, kind="stable")
              for price in _PRICES for figure in figures]
    kept: dict[int, None] = {}
    for row in (int(order[rank]) for rank in range(len(found.mixes)) for order in orders):
        kept.setdefault(row)
        if len(kept) == most:
            break
    return list(kept)
