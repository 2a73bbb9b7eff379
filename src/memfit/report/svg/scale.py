"""From numbers to places, and where to put ticks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from memfit.core.units import GIB, KIB, MIB
from memfit.report.svg.canvas import element, text


@dataclass(frozen=True)
class Scale:
    """A straight line from `[low, high]` to `[start, stop]`; everything in the middle where low is high."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        if self.high == self.low:
            return (self.start + self.stop) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)


def step_of(span: float, count: int) -> float:
    """A round step (1, 2, 2.5 or 5 times a power of ten) that divides `span` into at most `count` parts."""
    rough = span / max(count, 1)
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next((nice * power for nice in (1, 2, 2.5, 5) if nice * power >= rough * (1 - 1e-9)), 10 * power)


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round values from `low` to `high`."""
    step = step_of(high - low, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def byte_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Round sizes from `low` to `high` with labels of one unit."""
    unit, name = next(
        ((size, name) for size, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")) if high >= size), (1, "B")
    )
    return [(value * unit, f"{value:g} {name}" if value else "0") for value in ticks(low / unit, high / unit, count)]


def y_axis(marks: list[tuple[float, str]], scale: Scale, left: float, right: float) -> str:
    """Faint lines across the plot with their labels left of it."""
    return "".join(
        element("line", x1=left, x2=right, y1=scale(value), y2=scale(value), stroke="currentColor", stroke_opacity=0.14)
        + text(left - 8, scale(value) + 4.5, label, text_anchor="end", fill_opacity=0.75)
        for value, label in marks
    )


def x_axis(marks: list[tuple[float, str]], scale: Scale, top: float, bottom: float) -> str:
    """Faint upright lines with their labels below."""
    return "".join(
        element("line", x1=scale(value), x2=scale(value), y1=top, y2=bottom, stroke="currentColor", stroke_opacity=0.14)
        + text(scale(value), bottom + 18, label, text_anchor="middle", fill_opacity=0.75)
        for value, label in marks
    )


def path(points: list[tuple[float, float]], show: Callable[[float], str]) -> str:
    """`M x y L x y ...`"""
    return "M" + "L".join(f"{show(x)},{show(y)}" for x, y in points) if points else ""
