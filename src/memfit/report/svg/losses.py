"""The loss over the steps: plain dashed, planned on top of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from memfit.report.format import number as words_of
from memfit.report.svg import canvas
from memfit.report.svg.canvas import NARROW, element, hover, number, text, text_width
from memfit.report.svg.scale import Scale, path, ticks, x_axis, y_axis

_STYLES = {"plain": (canvas.PLAIN, 5.0, "7 5"), "planned": (canvas.OWN, 2.2, "")}
_OTHERS = ("#009e73", "#cc79a7", "#e69f00")


def losses(series: Mapping[str, Sequence[float]], *, width: int = 900, title: str = "Loss over the steps") -> str:
    """The picture as an `<svg>` string, `width` CSS pixels wide; an empty string where no value is finite.

    One value a step, from step 1; values that are not finite leave a gap.
    """
    finite = [value for values in series.values() for value in values if math.isfinite(value)]
    if not finite:
        return ""
    spread = max(max(finite) - min(finite), abs(max(finite)) * 1e-3, 1e-12)
    low, high = min(finite) - 0.06 * spread, max(finite) + 0.06 * spread
    marks = [(value, f"{value:g}") for value in ticks(low, high, 5)]
    left = 14 + max(text_width(label) for _, label in marks)
    bottom = 12 + (230 if width > NARROW else 200)
    x = Scale(1, max(2, *(len(values) for values in series.values())), left, width - 12)
    y = Scale(low, high, bottom, 12)
    steps = [(value, f"{value:g}") for value in ticks(1, x.high, 8 if width > NARROW else 5) if value == int(value)]
    body = y_axis(marks, y, left, width - 12) + x_axis(steps, x, 12, bottom)
    body += text(width - 12, bottom + 38, "step", text_anchor="end", fill_opacity=0.75)
    body += "".join(
        _line(name, values, _style(name, index), x, y) for index, (name, values) in enumerate(series.items())
    )
    legend, height = canvas.legend(_legend(series), 4, bottom + 50, width - 8)
    return canvas.picture(width, bottom + 50 + height, body + legend, title, _description(series))


def _style(name: str, index: int) -> tuple[str, float, str]:
    return _STYLES.get(name, (_OTHERS[index % len(_OTHERS)], 2.2, ""))


def _line(name: str, values: Sequence[float], style: tuple[str, float, str], x: Scale, y: Scale) -> str:
    colour, thickness, pattern = style
    extra = {"stroke_dasharray": pattern} if pattern else {}
    drawn = "".join(path(run, number) if len(run) > 1 else _single(run[0]) for run in _runs(values, x, y))
    return (
        element(
            "path",
            hover(_said(name, values)),
            d=drawn,
            fill="none",
            stroke=colour,
            stroke_width=thickness,
            stroke_linejoin="round",
            stroke_linecap="butt" if pattern else "round",
            **extra,
        )
        if drawn
        else ""
    )


def _single(point: tuple[float, float]) -> str:
    return f"M{number(point[0])},{number(point[1])}h0.1"


def _runs(values: Sequence[float], x: Scale, y: Scale) -> list[list[tuple[float, float]]]:
    """Unbroken stretches of finite values."""
    runs: list[list[tuple[float, float]]] = [[]]
    for step, value in enumerate(values, start=1):
        if math.isfinite(value):
            runs[-1].append((x(step), y(value)))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _legend(series: Mapping[str, Sequence[float]]) -> list[tuple[str, str]]:
    styles = [(name, _style(name, index)) for index, name in enumerate(series)]
    return [(canvas.dash(colour, "4 2" if pattern else ""), name) for name, (colour, _, pattern) in styles]


def _said(name: str, values: Sequence[float]) -> str:
    return (
        f"{name}: {words_of(values[0])} to {words_of(values[-1])} over {len(values)} steps"
        if values
        else f"{name}: no steps"
    )


def _description(series: Mapping[str, Sequence[float]]) -> str:
    return "; ".join(_said(name, values) for name, values in series.items()) + "."
