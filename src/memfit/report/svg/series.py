"""A timeline made ready for drawing: thinned to the pixels that there are, stacked, its phases grouped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memfit.core.results import Timeline
from memfit.report.svg.canvas import COLOURS


@dataclass(frozen=True)
class Layer:
    """One category's area: from `below` to `above`, in bytes, at each sample."""

    name: str
    below: tuple[int, ...]
    above: tuple[int, ...]


def thinned(timeline: Timeline, buckets: int) -> list[int]:
    """Indices to draw: of each of `buckets` spans the sample with the most bytes and the one with the fewest."""
    sums = totals(timeline)
    if len(sums) <= 2 * buckets:
        return list(range(len(sums)))
    kept = {0, len(sums) - 1}
    for bucket in range(buckets):
        span = range(bucket * len(sums) // buckets, (bucket + 1) * len(sums) // buckets)
        kept |= {max(span, key=sums.__getitem__), min(span, key=sums.__getitem__)}
    return sorted(kept)


def totals(timeline: Timeline) -> list[int]:
    """Bytes of all categories together at each sample."""
    return [sum(values) for values in zip(*timeline.by_category.values(), strict=True)]


def layers(timeline: Timeline, kept: Sequence[int]) -> list[Layer]:
    """Categories that hold anything, stacked with the ones that last at the bottom."""
    order = [name for name in COLOURS if name in timeline.by_category]
    order += [name for name in timeline.by_category if name not in COLOURS]
    made: list[Layer] = []
    below = (0,) * len(kept)
    for name in order:
        values = timeline.by_category[name]
        if any(values):
            above = tuple(base + values[index] for base, index in zip(below, kept, strict=True))
            made.append(Layer(name, below, above))
            below = above
    return made


def end_of(timeline: Timeline) -> int:
    """Where the last sample ends: one mean distance behind it."""
    span = timeline.x[-1] - timeline.x[0]
    return timeline.x[-1] + max(1, span // max(1, len(timeline.x) - 1))


def spans(timeline: Timeline) -> list[tuple[str, int, int]]:
    """`(phase, start, stop)` in order; neighbours of one name are one span."""
    if not timeline.phases:
        return []
    made: list[tuple[str, int, int]] = []
    stops = [start for _, start in timeline.phases[1:]] + [end_of(timeline)]
    for (name, start), stop in zip(timeline.phases, stops, strict=True):
        if made and made[-1][0] == name:
            made[-1] = (name, made[-1][1], stop)
        else:
            made.append((name, start, stop))
    return made


def grouped(phases: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """The same with repetitions as one span: `4 x forward, backward`."""
    made: list[tuple[str, int, int]] = []
    at = 0
    while at < len(phases):
        period, count = _repetition([name for name, _, _ in phases[at:]])
        names = ", ".join(name for name, _, _ in phases[at : at + period])
        made.append((f"{count} x ({names})" if count > 1 else names, phases[at][1], phases[at + period * count - 1][2]))
        at += period * count
    return made


def _repetition(names: list[str]) -> tuple[int, int]:
    """How long the pattern at the start is, and how often it comes in a row."""
    for period in (2, 3):
        count = 1
        while names[count * period : (count + 1) * period] == names[:period] and len(names) >= (count + 1) * period:
            count += 1
        if count > 1:
            return period, count
    return 1, 1
