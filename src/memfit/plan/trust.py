"""How far predicted gains are believed: a mix counts as faster than the same mix without one of its strategies only if the
gain is beyond what the time model may be off by.

What a strategy does not touch is predicted alike on both sides and cancels; the error is that of the phases that it
changes. Gains that are not counted keep the order of plans sound: where a simpler mix fits, it is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memfit.core.device import Device
from memfit.core.strategy import Choice
from memfit.plan.explore import HOOKED, Candidate
from memfit.simulate import phase_seconds

# Predicted against measured: see benchmarks/results/time_model.csv.
_ERROR = 0.05
_ALIKE = 1e-3  # phases whose times differ by less are untouched
Phases = Mapping[str, float]


def trusted_seconds(candidates: Sequence[Candidate], device: Device) -> list[float]:
    """Seconds of a step of each candidate, in their order; gains that may be the model's error are left out."""
    phases = {_key(one.choices): _phases(one, device) for one in candidates}
    found: dict[str, float] = {}
    for one in sorted(candidates, key=lambda c: (len(c.choices), repr(c.choices))):
        seconds = own = one.simulation.step_s
        for choice in one.choices:
            without = _key(tuple(c for c in one.choices if c != choice))
            if without in found and not _clear(own, phases[_key(one.choices)], found[without], phases[without]):
                seconds = max(seconds, found[without])
        found[_key(one.choices)] = seconds
    return [found[_key(one.choices)] for one in candidates]


def _clear(own_s: float, own: Phases, other_s: float, other: Phases) -> bool:
    """Whether the first is faster by more than the error of the phases in which the two differ."""
    differing = sum(max(own.get(name, 0.0), other.get(name, 0.0)) for name in {*own, *other}
                    if abs(own.get(name, 0.0) - other.get(name, 0.0)) > _ALIKE * other_s)
    return own_s <= other_s - _ERROR * differing and own_s < other_s


def _phases(candidate: Candidate, device: Device) -> Phases:
    return phase_seconds(candidate.trace, device, hooked=any(c.name in HOOKED for c in candidate.choices))


def _key(choices: Sequence[Choice]) -> str:
    return repr(sorted((c.name, repr(sorted(c.settings.items(), key=repr))) for c in choices))
