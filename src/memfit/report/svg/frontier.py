"""Peak against time: what every saving costs, the chosen mix marked, the budget upright."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memfit.core.results import FrontierPoint
from memfit.report.format import gib, ratio
from memfit.report.settings import mix_text
from memfit.report.svg import canvas
from memfit.report.svg.canvas import NARROW, element, hover, number, text, text_width
from memfit.report.svg.scale import Scale, byte_ticks, path, step_of, ticks, x_axis, y_axis


@dataclass(frozen=True)
class _Plot:
    x: Scale
    y: Scale

    @property
    def left(self) -> float:
        return self.x.start

    @property
    def right(self) -> float:
        return self.x.stop

    @property
    def top(self) -> float:
        return self.y.stop

    @property
    def bottom(self) -> float:
        return self.y.start


def frontier(
    points: Sequence[FrontierPoint],
    *,
    chosen: FrontierPoint | None = None,
    budget_bytes: int | None = None,
    floor_bytes: int | None = None,
    width: int = 900,
    title: str = "Peak memory against step time",
) -> str:
    """The picture as an `<svg>` string, `width` CSS pixels wide; an empty string where there are no points.

    `chosen` need not be one of `points`. Left of `floor_bytes` nothing fits.
    """
    shown = [*points] if chosen is None or chosen in points else [*points, chosen]
    if not shown:
        return ""
    plot = _plot(shown, budget_bytes, floor_bytes, width)
    y_marks = [(value, ratio(value)) for value in ticks(plot.y.low, plot.y.high, 5)]
    body = x_axis(_byte_marks(plot, width), plot.x, plot.top, plot.bottom) + y_axis(
        y_marks, plot.y, plot.left, plot.right
    )
    body += text(4, plot.top - 16, "step time, plain is 1.00x", fill_opacity=0.75)
    body += text(plot.right, plot.bottom + 38, "peak memory", text_anchor="end", fill_opacity=0.75)
    body += _floor(floor_bytes, plot) + _stairs(shown, plot) + _budget(budget_bytes, plot)
    body += "".join(_dot(point, plot) for point in shown if point != chosen) + _chosen(chosen, plot)
    legend, height = canvas.legend(_legend(shown, chosen), 4, plot.bottom + 54, width - 8)
    return canvas.picture(
        width, plot.bottom + 54 + height, body + legend, title, _description(shown, chosen, budget_bytes)
    )


def _plot(points: Sequence[FrontierPoint], budget_bytes: int | None, floor_bytes: int | None, width: int) -> _Plot:
    sizes = [point.peak_bytes for point in points] + [size for size in (budget_bytes, floor_bytes) if size]
    times = [point.slowdown for point in points]
    spread = max(max(times) - min(times), 0.1)
    low, high = min(times) - spread * 0.08, max(times) + spread * 0.14
    left = 14 + max(text_width(ratio(value)) for value in (low, high))
    bottom = 34 + (270 if width > NARROW else 230)
    return _Plot(Scale(_low(sizes), max(sizes) * 1.05, left, width - 6), Scale(low, high, bottom, 34))


def _low(sizes: Sequence[int]) -> float:
    """Where the axis of sizes begins: at nothing, unless that leaves most of the picture empty."""
    step = step_of(max(sizes), 10)
    return 0.0 if min(sizes) < 0.6 * max(sizes) else max(0.0, min(sizes) - step)


def _byte_marks(plot: _Plot, width: int) -> list[tuple[float, str]]:
    marks = byte_ticks(plot.x.low, plot.x.high, 8 if width > NARROW else 4)
    return [(value, label) for value, label in marks if plot.x(value) + text_width(label) / 2 <= plot.right + 6]


def _best(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """Points that no other beats in both, smallest first."""
    made: list[FrontierPoint] = []
    for point in sorted(points, key=lambda one: (one.peak_bytes, one.slowdown)):
        if not made or point.slowdown < made[-1].slowdown:
            made.append(point)
    return made


def _stairs(points: Sequence[FrontierPoint], plot: _Plot) -> str:
    """The fastest that each budget allows: level until the next point fits, then down to it."""
    best = _best(points)
    corners: list[tuple[float, float]] = []
    for point in best:
        if corners:
            corners.append((plot.x(point.peak_bytes), corners[-1][1]))
        corners.append((plot.x(point.peak_bytes), plot.y(point.slowdown)))
    corners.append((plot.right, corners[-1][1]))
    return element("path", d=path(corners, number), fill="none", stroke=canvas.OWN, stroke_width=2, stroke_opacity=0.6)


def _dot(point: FrontierPoint, plot: _Plot) -> str:
    x, y = plot.x(point.peak_bytes), plot.y(point.slowdown)
    filled = canvas.OWN if point.simulated else "#fff"
    dot = element("circle", hover(_named(point)), cx=x, cy=y, r=4.5, fill=filled, stroke=canvas.OWN, stroke_width=1.8)
    if point.strategies:
        return dot
    return dot + text(min(x, plot.right - 20), y - 11, "plain", text_anchor="middle", font_weight=600)


def _chosen(chosen: FrontierPoint | None, plot: _Plot) -> str:
    if chosen is None:
        return ""
    x, y = plot.x(chosen.peak_bytes), plot.y(chosen.slowdown)
    mark = element(
        "path",
        hover(_named(chosen)),
        d=f"M{number(x)},{number(y - 9)}l9,9l-9,9l-9,-9Z",
        fill=canvas.COLOURS["temporaries"],
        stroke="#fff",
        stroke_width=1.5,
    )
    words = f"{gib(chosen.peak_bytes)}, {ratio(chosen.slowdown)}"
    above = y - 24 if y - 24 > plot.top else y + 24
    return canvas.pill(x, above, words, canvas.COLOURS["temporaries"], low=plot.left, high=plot.right) + mark


def _budget(budget_bytes: int | None, plot: _Plot) -> str:
    if budget_bytes is None:
        return ""
    x = plot.x(budget_bytes)
    line = element(
        "line", x1=x, x2=x, y1=plot.top - 4, y2=plot.bottom, stroke=canvas.LIMIT, stroke_width=2, stroke_dasharray="8 4"
    )
    return line + canvas.pill(
        x, plot.bottom - 16, f"budget {gib(budget_bytes)}", canvas.LIMIT, low=plot.left, high=plot.right
    )


def _floor(floor_bytes: int | None, plot: _Plot) -> str:
    if not floor_bytes or plot.x(floor_bytes) <= plot.left:
        return ""
    words = f"below the floor of {gib(floor_bytes)} nothing fits"
    return element(
        "rect",
        hover(words),
        x=plot.left,
        y=plot.top,
        width=plot.x(floor_bytes) - plot.left,
        height=plot.bottom - plot.top,
        fill="currentColor",
        fill_opacity=0.09,
    )


def _legend(points: Sequence[FrontierPoint], chosen: FrontierPoint | None) -> list[tuple[str, str]]:
    def dot(colour: str) -> str:
        return element("circle", cx=6, cy=6, r=4.5, fill=colour, stroke=canvas.OWN, stroke_width=1.8)

    made = [(dot(canvas.OWN), "simulated")] if any(one.simulated and one != chosen for one in points) else []
    made += [(dot("#fff"), "a bound, not simulated")] if any(not one.simulated for one in points) else []
    mark = element("path", d="M6,-1l7,7l-7,7l-7,-7Z", fill=canvas.COLOURS["temporaries"])
    made += [(mark, "this plan")] if chosen else []
    return [*made, (element("rect", width=12, height=12, fill="currentColor", fill_opacity=0.15), "nothing fits")]


def _named(point: FrontierPoint) -> str:
    bound = "" if point.simulated else "at most "
    return f"{mix_text(point.strategies)}: {bound}{gib(point.peak_bytes)}, {ratio(point.slowdown)}"


def _description(points: Sequence[FrontierPoint], chosen: FrontierPoint | None, budget_bytes: int | None) -> str:
    said = f"{len(points)} mixes of strategies, from {gib(min(point.peak_bytes for point in points))} "
    said += f"to {gib(max(point.peak_bytes for point in points))}."
    said += f" Chosen: {_named(chosen)}." if chosen else ""
    return said + (f" The budget is {gib(budget_bytes)}." if budget_bytes is not None else "")
