"""One way to treat the saved tensors of a traced mix, with its bounds."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.core.strategy import Choice


@dataclass(frozen=True)
class Selection:
    """A choice (None: nothing dropped) with its bounds: peak bytes, and seconds added to the step."""

    choice: Choice | None
    peak_bytes: int
    extra_s: float


def pareto(selections: list[Selection]) -> list[Selection]:
    """Those that no other beats in both peak and time, fastest first."""
    kept: list[Selection] = []
    for selection in sorted(selections, key=lambda s: (s.extra_s, s.peak_bytes, repr(s.choice))):
        if not kept or selection.peak_bytes < kept[-1].peak_bytes:
            kept.append(selection)
    return kept
