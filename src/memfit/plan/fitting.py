"""The largest batch that a card has room for: a size that was itself estimated, never one beyond."""

from __future__ import annotations

from collections.abc import Callable

from memfit.core.results import Estimate

_MOST = 1 << 16
_PROBES = 10


def largest_fitting(estimate: Callable[[int], Estimate], known: dict[int, Estimate]) -> int | None:
    """The largest size that fits, to a sixty-fourth, by at most ten more estimates; None if not even one sample does.

    `known` holds the estimates made so far, by size, and takes the new ones. Bytes grow about linearly with the size, so
    the first size to try is read off a line through two that are known; then the gap is halved.
    """
    for _ in range(_PROBES):
        good = max((size for size, one in known.items() if one.fits), default=0)
        bad = min((size for size, one in known.items() if not one.fits and size > good), default=None)
        if good and bad is not None and bad - good <= max(1, good // 64):
            break
        trial = min(_MOST, _next(known, good, bad))
        if trial in known:
            break
        known[trial] = estimate(trial)
    return max((size for size, one in known.items() if one.fits), default=None)


def _next(known: dict[int, Estimate], good: int, bad: int | None) -> int:
    if bad is not None:
        return (good + bad) // 2 if good else max(1, bad // 4)
    return max(good + 1, min(_by_line(known) or 2 * good, 8 * good))


def _by_line(known: dict[int, Estimate]) -> int | None:
    """Where the line through the two largest sizes reaches the card's capacity."""
    if len(known) < 2:
        return None
    small, large = sorted(known)[-2:]
    low, high = known[small].peak.high_bytes, known[large].peak.high_bytes
    capacity = known[large].capacity_bytes
    if capacity is None or high <= low:
        return None
    return int(large + (capacity - high) * (large - small) / (high - low))
