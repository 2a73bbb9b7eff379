"""What operator calls cost on a machine: seconds that were measured for some sizes, and read off for all others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_NEIGHBOURS = 4  # measured calls that an estimate is made of
_LEAST_S = 1e-9
Point = tuple[float, float, float]
"""Floating-point operations, bytes moved (read and written), and seconds of a measured call."""
_Key = tuple[str, str, int, int]


@dataclass(frozen=True, eq=False)
class Costs:
    """Measured calls by `operator:dtype`, and `overheads`: seconds of host work for one operator call, beyond its kernel,
    by the phase it is in; under `hooked` what a Python hook adds to a call, under `again` what making a value again from
    its recipe adds.

    Between measured sizes the seconds are interpolated on logarithmic scales, beyond them the rate stays that of the
    nearest size. The calls were made again and again on the same tensors, so the caches held those that fit; `streams`
    are pairs of a reuse distance (bytes touched since the last use) and the bytes a second at which tensors of that
    distance are read and written.
    """

    points: Mapping[str, tuple[Point, ...]]
    overheads: Mapping[str, float] = field(default_factory=dict)
    streams: tuple[tuple[float, float], ...] = ()
    _known: dict[_Key, float | None] = field(default_factory=dict, repr=False)

    def seconds(self, name: str, dtype: str, flops: int, bytes_moved: int) -> float | None:
        """Of one kernel; None for an operator that nothing like it was measured of."""
        key = (name, dtype, flops, bytes_moved)
        if key not in self._known:
            self._known[key] = self._read_off(name, dtype, flops, bytes_moved)
        return self._known[key]

    def stream(self, distance: float) -> float:
        """Bytes a second for tensors that were last used `distance` bytes ago; infinite where that was not measured."""
        if not self.streams:
            return math.inf
        return _interpolated(self.streams, max(distance, 1.0), rising=False)

    def _read_off(self, name: str, dtype: str, flops: int, bytes_moved: int) -> float | None:
        points = self._points(name, dtype)
        if not points:
            return None
        if flops > 0 and points[0][0] > 0:
            return flops / _rate(points, flops, bytes_moved)
        return _interpolated([(nbytes, seconds) for _, nbytes, seconds in points], bytes_moved)

    def _points(self, name: str, dtype: str) -> tuple[Point, ...]:
        for one in (name, name.rstrip("_")):
            for kind in (dtype, "float32"):
                if found := self.points.get(f"{one}:{kind}"):
                    return found
        return ()


def costs(points: Mapping[str, Iterable[Sequence[float]]], overheads: Mapping[str, float],
          streams: Iterable[Sequence[float]] = ()) -> Costs:
    """From plain lists, as they are kept in a file."""
    ordered = {name: tuple(sorted((float(a), float(b), float(c)) for a, b, c in some)) for name, some in points.items()}
    return Costs(ordered, dict(overheads), tuple(sorted((float(a), float(b)) for a, b in streams)))


def _rate(points: Sequence[Point], flops: int, bytes_moved: int) -> float:
    """Operations a second: of the measured calls most alike in operations and in operations per byte, the nearer the more."""
    size, density = math.log(flops), math.log(flops / max(bytes_moved, 1))
    near: list[tuple[float, float]] = []
    for point_flops, point_bytes, seconds in points:
        away = abs(math.log(point_flops) - size) + 2 * abs(math.log(point_flops / point_bytes) - density)
        near.append((away, math.log(point_flops / max(seconds, _LEAST_S))))
    near = sorted(near)[:_NEIGHBOURS]
    weights = [1.0 / (away + 0.05) ** 3 for away, _ in near]
    return math.exp(sum(w * logged for w, (_, logged) in zip(weights, near, strict=True)) / sum(weights))


def _interpolated(points: Sequence[tuple[float, float]], nbytes: float, *, rising: bool = True) -> float:
    """`rising`: beyond the last point the value grows in proportion."""
    first, last = points[0], points[-1]
    if nbytes <= first[0]:
        return first[1]  # a small call is all overhead
    if nbytes >= last[0]:
        return last[1] * nbytes / last[0] if rising else last[1]
    after = next(place for place, point in enumerate(points) if point[0] >= nbytes)
    (x0, y0), (x1, y1) = points[after - 1], points[after]
    share = math.log(nbytes / x0) / math.log(x1 / x0) if x1 > x0 else 1.0
    return math.exp(math.log(max(y0, _LEAST_S)) * (1 - share) + math.log(max(y1, _LEAST_S)) * share)
