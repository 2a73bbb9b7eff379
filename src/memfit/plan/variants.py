"""Mixes worth a trace of their own: every strategy but checkpointing, alone and together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from memfit.apply import conflict, strategies
from memfit.core.fidelity import Fidelity
from memfit.core.results import Rejected
from memfit.core.strategy import ByHand, Choice, Settings
from memfit.plan.explore import Candidate, Explorer
from memfit.plan.mixes import Effect, effect, promising
from memfit.plan.trust import trusted_seconds
from memfit.trace.usage import usage

BY_TRACE = ("checkpoint", "recompute")  # chosen on each mix's own trace, by the search
MOST_MIXES, LEAST_MIXES = 16, 6
_TRACED_EVENTS = 40_000  # of all mixes together, about: small steps are cheap to trace
_FIRST = ("fused-step",)  # may be the base of all mixes
_LITTLE = 0.93


@dataclass
class Variants:
    """Candidates (plain first) to choose checkpointed modules on, and strategies left out with the reason."""

    candidates: list[Candidate] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


def variants(explorer: Explorer, allowed: Fidelity, barred: dict[str, str]) -> Variants:
    """Trace every strategy alone, then the mixes of those that lower the curve somewhere. A strategy that makes the step
    clearly faster and no larger is the base: the others are traced with it wherever they can be."""
    found = Variants([explorer.plain])
    base: list[Choice] = []
    useful: list[list[Choice]] = []
    for name in sorted(strategies(), key=lambda name: (name not in _FIRST, name)):
        if name not in BY_TRACE:
            kept = _alone(explorer, name, allowed, barred, found, base)
            if kept and name in _FIRST and _better(explorer, found.candidates[-1]):
                base.extend(kept)
            elif kept:
                useful.append(kept)
    effects = [[_effect(explorer, choice, base) for choice in kept] for kept in useful]
    most = min(MOST_MIXES, max(LEAST_MIXES, _TRACED_EVENTS // max(1, len(explorer.plain.trace.events))))
    for choices in promising(_traced(explorer, base), effects, most):
        candidate = explorer.candidate(_with(base, choices))
        if isinstance(candidate, Candidate):
            found.candidates.append(candidate)
    return found


def _with(base: Sequence[Choice], choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices on the base, in the order of their names; without it where they conflict."""
    both = (*(one for one in base if conflict((one, *choices)) is None), *choices)
    return tuple(sorted(both, key=lambda one: one.name))


def _better(explorer: Explorer, alone: Candidate) -> bool:
    plain = explorer.plain
    return (alone.simulation.peak.high_bytes <= plain.simulation.peak.high_bytes
            and trusted_seconds([plain, alone], explorer.device)[1] < plain.simulation.step_s)


def _alone(
    explorer: Explorer, name: str, allowed: Fidelity, barred: dict[str, str], found: Variants, base: Sequence[Choice]
) -> list[Choice]:
    strategy, job = strategies()[name], explorer.fake
    reason = barred.get(name) or strategy.excluded(job, explorer.device)
    if reason:
        found.rejected.append(Rejected(name, reason))
        return []
    kept: list[Choice] = []
    notes: list[str] = []
    options = strategy.choices(job, explorer.plain.trace, explorer.device)
    for settings in _worth_tracing(options, kept, explorer, base):
        fidelity = strategy.fidelity(job, settings)
        if not allowed.allows(fidelity):
            notes.append(f"gives {fidelity.value} results; allowed is {allowed.value} (--fidelity {fidelity.value})")
            break
        choice = Choice(name, settings)
        candidate = explorer.candidate(_with(base, [choice]))
        if isinstance(candidate, str):
            notes.append(candidate)
        elif any(_no_better(candidate, _traced(explorer, _with(base, [gentler]))) for gentler in kept):
            continue
        elif _lowers(candidate, _under(explorer, candidate, choice)):
            found.candidates.append(candidate)
            kept.append(choice)
        else:
            notes.append("saves nothing here: the peak of every phase stays as it is")
    if not kept:
        nothing = strategy.by_hand if isinstance(strategy, ByHand) else "has nothing to act on in this job"
        found.rejected.append(Rejected(name, notes[0] if notes else nothing))
    return kept


def _effect(explorer: Explorer, choice: Choice, base: Sequence[Choice]) -> Effect:
    alone = _traced(explorer, _with(base, [choice]))
    return effect(choice, alone, _under(explorer, alone, choice))


def _under(explorer: Explorer, candidate: Candidate, choice: Choice) -> Candidate:
    """What a candidate is without the choice: traced before."""
    return _traced(explorer, [one for one in candidate.choices if one != choice])


def _traced(explorer: Explorer, choices: Sequence[Choice]) -> Candidate:
    """Choices that were traced before; plain where they cannot be."""
    found = explorer.candidate(choices)
    return found if isinstance(found, Candidate) else explorer.plain


def _worth_tracing(
    options: Sequence[Settings], kept: list[Choice], explorer: Explorer, base: Sequence[Choice]
) -> Iterator[Settings]:
    """Settings from gentle to strong; where one more gave little, only the strongest of the rest."""
    peaks: list[int] = []
    for place, settings in enumerate(options):
        yield settings
        last = explorer.candidate(_with(base, [kept[-1]])) if kept else None
        if isinstance(last, Candidate):
            peaks.append(last.simulation.peak.allocated_bytes)
        if len(peaks) > 1 and peaks[-1] > _LITTLE * peaks[-2]:
            yield from options[max(place + 1, len(options) - 1):]
            return


def _lowers(candidate: Candidate, plain: Candidate) -> bool:
    """Whether some phase needs less, or the step is clearly faster."""
    if candidate.simulation.step_s < 0.98 * plain.simulation.step_s:
        return True
    little = 0.001 * plain.simulation.peak.allocated_bytes
    before, after = _phase_peaks(plain), _phase_peaks(candidate)
    return any(after.get(phase, 0) < peak - little for phase, peak in before.items())


def _no_better(candidate: Candidate, other: Candidate) -> bool:
    """Whether every phase needs as much, in no less time."""
    peaks, others = _phase_peaks(candidate), _phase_peaks(other)
    return (candidate.simulation.step_s >= other.simulation.step_s
            and all(peaks.get(phase, 0) >= peak for phase, peak in others.items()))


def _phase_peaks(candidate: Candidate) -> dict[str, int]:
    curve, phases = usage(candidate.trace).curve, candidate.trace.phases
    peaks: dict[str, int] = {}
    for place, (name, start) in enumerate(phases):
        stop = phases[place + 1][1] if place + 1 < len(phases) else len(curve)
        if stop > start:
            peaks[name] = max(peaks.get(name, 0), int(curve[start:stop].max()))
    return peaks
