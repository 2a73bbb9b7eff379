"""Which modules to checkpoint: bounds read off a trace, from none checkpointed down to the smallest peak.

The bounds only rank. What is returned is applied, traced and simulated (`plan.search`).
"""

from __future__ import annotations

import numpy as np

from memfit.core.device import Device
from memfit.core.strategy import Choice
from memfit.core.trace import Trace
from memfit.plan.selection import Selection, pareto
from memfit.simulate import op_seconds
from memfit.trace.segments import Segment, segments
from memfit.trace.usage import Curve, Usage, usage

_WEIGHTS = (1.0, 0.5, 0.0)  # how much a segment's time counts against the bytes that it frees


class Checkpointing:
    """Bounds for sets of checkpointed modules on one traced step."""

    def __init__(self, trace: Trace, device: Device, banned: frozenset[str] = frozenset()) -> None:
        self.trace = trace
        self.use: Usage = usage(trace)
        self.segments: dict[str, Segment] = {
            s.path: s for s in segments(trace, self.use) if s.frees_bytes > 0 and s.path not in banned}
        self._seconds = {path: sum(op_seconds(trace.ops[i], device) for i in s.ops) for path, s in self.segments.items()}
        self._effects: dict[str, Curve] = {path: self._effect(s) for path, s in self.segments.items()}

    def selections(self) -> list[Selection]:
        """Selections from gentle to smallest, best ones only (none has both a higher peak and more time)."""
        return pareto([selection for weight in _WEIGHTS for selection in self._descend(weight)])

    def bound(self, paths: frozenset[str]) -> Selection:
        """The bounds of one set."""
        curve = self._curve(paths)
        ordered = tuple(path for path in self.segments if path in paths)
        choice = Choice("checkpoint", {"modules": list(ordered)}) if ordered else None
        return Selection(choice, int(curve.max()), sum(self._seconds[path] for path in ordered))

    def _descend(self, weight: float) -> list[Selection]:
        """Add, again and again, the module that frees most at the peak for its time, until nothing helps."""
        chosen: frozenset[str] = frozenset()
        path = [self.bound(chosen)]
        for _ in range(4 * len(self.segments) + 1):
            better = self._step(chosen, path[-1].peak_bytes, weight)
            if better is None:
                return path
            chosen = better
            path.append(self.bound(chosen))
        return path

    def _step(self, chosen: frozenset[str], peak: int, weight: float) -> frozenset[str] | None:
        curve = self._curve(chosen)
        where = int(curve.argmax())
        ranked: list[tuple[float, str]] = []
        for path, effect in self._effects.items():
            if path in chosen:
                continue
            freed = -int(effect[where]) + sum(int(self._effects[p][where]) for p in chosen if _nested(p, path))
            if freed > 0:
                added = self._seconds[path] - sum(self._seconds[p] for p in chosen if _nested(p, path))
                ranked.append((freed / max(added, 1e-7) ** weight, path))
        for _, path in sorted(ranked, key=lambda item: (-item[0], item[1]))[:12]:
            trial = frozenset(p for p in chosen if not _nested(p, path)) | {path}
            if self._improves(trial, curve, where, peak):
                return trial
        for path in sorted(chosen):  # a segment whose recomputation makes the peak: split it into its parts
            children = frozenset(p for p in self.segments if _parent(p) == path)
            for trial in ((chosen - {path}) | children, chosen - {path}):
                if self._improves(trial, curve, where, peak):
                    return trial
        return None

    def _improves(self, trial: frozenset[str], curve: Curve, where: int, peak: int) -> bool:
        """Lower at the peak, or equally high at fewer places."""
        new = self._curve(trial)
        top = int(new.max())
        return top < peak or (top == peak and new[where] < curve[where] and int((new == top).sum()) < int((curve == top).sum()))

    def _curve(self, paths: frozenset[str]) -> Curve:
        curve = self.use.curve.copy()
        for path in paths:
            curve += self._effects[path]
        return curve

    def _effect(self, segment: Segment) -> Curve:
        """How checkpointing the segment alone changes the curve."""
        effect = np.zeros(len(self.use.curve), np.int64)
        for call in segment.calls:
            for index in call.saved:
                effect[call.stop:call.back] -= self.trace.storages[index].nbytes
            for index in call.inputs:
                death = int(self.use.death[index])
                if death < call.back:
                    effect[death:call.back] += self.trace.storages[index].nbytes
            effect[call.back] += call.transient_bytes
        return effect


def _nested(one: str, other: str) -> bool:
    """Whether one path lies inside the other."""
    return one.startswith(other + ".") or other.startswith(one + ".")


def _parent(path: str) -> str:
    return path.rpartition(".")[0]
