"""Bytes over one training step: stacked by category, phases on the axis, the budget across, the peak marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memfit.core.results import Timeline
from memfit.report.format import gib
from memfit.report.svg import canvas, series
from memfit.report.svg.canvas import NARROW, element, hover, number, text, text_width
from memfit.report.svg.scale import Scale, byte_ticks, path, y_axis

_SHADES = {"forward": 0.16, "backward": 0.34, "optimizer": 0.55}


@dataclass(frozen=True)
class _Plot:
    left: float
    right: float
    top: float
    bottom: float
    y: Scale

    def x(self, timeline: Timeline) -> Scale:
        """Each timeline over the whole width: a plan's step has more events than plain's."""
        return Scale(timeline.x[0], series.end_of(timeline), self.left, self.right)


def timeline(
    own: Timeline,
    *,
    budget_bytes: int | None = None,
    plain: Timeline | None = None,
    width: int = 900,
    title: str = "Memory over one training step",
) -> str:
    """The picture as an `<svg>` string, `width` CSS pixels wide; an empty string where there are no samples.

    `plain` adds the total of the step without a plan as a dashed outline, stretched to the same width.
    """
    if not own.x:
        return ""
    plain = plain if plain and plain.x else None
    caption, top = _caption(own, width)
    plot = _plot(own, plain, budget_bytes, width, top)
    kept = series.thinned(own, int(plot.right - plot.left) // 2)
    stacked = series.layers(own, kept)
    phases, phases_height = _phases(own, plot)
    legend, legend_height = canvas.legend(
        _legend(stacked, plain, budget_bytes),
        plot.left if width > NARROW else 4,
        plot.bottom + phases_height + 14,
        width - plot.left if width > NARROW else width - 8,
    )
    body = caption + y_axis(byte_ticks(0, plot.y.high, 6), plot.y, plot.left, plot.right)
    body += _areas(own, kept, stacked, plot) + _outline(plain, plot) + phases + legend
    body += _marks(own, plain, budget_bytes, plot)
    return canvas.picture(
        width, plot.bottom + phases_height + 14 + legend_height, body, title, _description(own, plain, budget_bytes)
    )


def _plot(own: Timeline, plain: Timeline | None, budget_bytes: int | None, width: int, top: float) -> _Plot:
    most = max(own.peak_bytes, plain.peak_bytes if plain else 0, budget_bytes or 0, 1)
    left = 14 + max(text_width(label) for _, label in byte_ticks(0, most * 1.1, 6))
    bottom = top + (320 if width > NARROW else 250)
    return _Plot(left, width - 4, top, bottom, Scale(0, most * 1.1, bottom, top))


def _caption(own: Timeline, width: int) -> tuple[str, float]:
    """Where the peak is, in as many lines as it needs; and the height that they take."""
    at = own.at_peak
    phase = (
        at.phase if at else next((name for name, start, stop in series.spans(own) if start <= own.peak_x < stop), "")
    )
    head = f"Peak {gib(own.peak_bytes)}" + (f" in {phase}" if phase else "")
    lines = [head, *_lines([part for part in (at.module, at.op) if part] if at else [], width - 28)]
    mark = element("circle", cx=9, cy=11, r=5, fill="none", stroke="currentColor", stroke_width=2.5)
    words = "".join(
        text(22, 15.5 + row * 19, line, font_weight=600 if row == 0 else 400) for row, line in enumerate(lines)
    )
    return mark + words, 20.5 + len(lines) * 19


def _lines(parts: Sequence[str], width: float) -> list[str]:
    joined = ", ".join(parts)
    if text_width(joined) <= width:
        return [joined] if parts else []
    return [canvas.clipped(part, width) for part in parts]


def _areas(own: Timeline, kept: Sequence[int], stacked: Sequence[series.Layer], plot: _Plot) -> str:
    x = plot.x(own)
    edges = [x(own.x[index]) for index in kept] + [plot.right]
    peak = min(kept, key=lambda index: abs(own.x[index] - own.peak_x))
    made = ""
    for layer in stacked:
        upper, lower = _stairs(edges, layer.above, plot.y), _stairs(edges, layer.below, plot.y)
        size = gib(own.by_category[layer.name][peak])
        made += element(
            "path",
            hover(f"{_name(layer.name)}: {size} at the peak"),
            d=path(upper + lower[::-1], number) + "Z",
            fill=canvas.COLOURS.get(layer.name, canvas.OTHER),
        )
    return made


def _stairs(edges: Sequence[float], values: Sequence[int], y: Scale) -> list[tuple[float, float]]:
    """Bytes stay as they are until the next sample; runs of one height are one line."""
    points: list[tuple[float, float]] = []
    for index, value in enumerate(values):
        height = y(value)
        if points and abs(points[-1][1] - height) < 0.05:
            points[-1] = (edges[index + 1], height)
        else:
            points += [(edges[index], height), (edges[index + 1], height)]
    return points


def _outline(plain: Timeline | None, plot: _Plot) -> str:
    if plain is None:
        return ""
    kept = series.thinned(plain, int(plot.right - plot.left) // 2)
    sums, x = series.totals(plain), plot.x(plain)
    points = _stairs([x(plain.x[index]) for index in kept] + [plot.right], [sums[index] for index in kept], plot.y)
    return element(
        "path",
        hover(f"plain: peak {gib(plain.peak_bytes)}"),
        d=path(points, number),
        fill="none",
        stroke=canvas.PLAIN,
        stroke_width=1.8,
        stroke_dasharray="5 3",
    )


def _phases(own: Timeline, plot: _Plot) -> tuple[str, float]:
    """A strip under the plot, one shade a phase, with names where they fit; and the height of it all."""
    x, spans = plot.x(own), series.spans(own)
    made = "".join(
        element(
            "rect",
            hover(name),
            x=max(x(start), plot.left),
            y=plot.bottom + 3,
            width=max(0.5, x(stop) - max(x(start), plot.left) - 1),
            height=8,
            fill="currentColor",
            fill_opacity=_SHADES.get(name, 0.25),
        )
        for name, start, stop in spans
    )
    fitting = all(text_width(name) < x(stop) - x(start) for name, start, stop in spans)
    named = spans if fitting else series.grouped(spans)
    names = "".join(_phase_name(name, x(start), x(stop), plot) for name, start, stop in named)
    return made + names, 30.0 if spans else 6.0


def _phase_name(name: str, start: float, stop: float, plot: _Plot) -> str:
    half = text_width(name) / 2
    if 2 * half > stop - start and stop < plot.right - 1:
        return ""
    middle = min((start + stop) / 2, plot.right - half)
    return text(middle, plot.bottom + 26, name, text_anchor="middle", fill_opacity=0.8)


def _marks(own: Timeline, plain: Timeline | None, budget_bytes: int | None, plot: _Plot) -> str:
    """Budget, plain's peak and the peak itself, last so that nothing covers them."""
    x, y = plot.x(own)(own.peak_x), plot.y(own.peak_bytes)
    made, taken = "", [(x, y)]
    if plain is not None:
        at = plot.x(plain)(plain.peak_x), plot.y(plain.peak_bytes)
        made += canvas.pill(
            at[0], at[1] - 14, f"plain {gib(plain.peak_bytes)}", canvas.PLAIN, low=plot.left, high=plot.right
        )
        taken.append(at)
    if budget_bytes is not None:
        made += _budget(budget_bytes, plot, taken)
    made += element("circle", cx=x, cy=y, r=6.5, fill="#fff") + element(
        "circle", cx=x, cy=y, r=4.5, fill="none", stroke="#000", stroke_width=2.5
    )
    return made


def _budget(budget_bytes: int, plot: _Plot, taken: Sequence[tuple[float, float]]) -> str:
    """The line, and its name at the end that is further from the other marks at that height."""
    y = plot.y(budget_bytes)
    near = [x for x, height in taken if abs(height - y) < 40]
    middle = (plot.left + plot.right) / 2
    side = plot.right if near and sum(near) / len(near) < middle else plot.left
    line = element(
        "line",
        hover(f"budget {gib(budget_bytes)}"),
        x1=plot.left,
        x2=plot.right,
        y1=y,
        y2=y,
        stroke=canvas.LIMIT,
        stroke_width=2,
        stroke_dasharray="8 4",
    )
    return line + canvas.pill(
        side, max(y - 12, plot.top - 2), f"budget {gib(budget_bytes)}", canvas.LIMIT, low=plot.left, high=plot.right
    )


def _legend(stacked: Sequence[series.Layer], plain: Timeline | None, budget_bytes: int | None) -> list[tuple[str, str]]:
    made = [(canvas.square(canvas.COLOURS.get(layer.name, canvas.OTHER)), _name(layer.name)) for layer in stacked[::-1]]
    made += [(canvas.dash(canvas.PLAIN, "4 2"), "plain, all categories")] if plain is not None else []
    return made + ([(canvas.dash(canvas.LIMIT, "6 2"), "budget")] if budget_bytes is not None else [])


def _description(own: Timeline, plain: Timeline | None, budget_bytes: int | None) -> str:
    said = [f"The peak of {gib(own.peak_bytes)} is reached"]
    at = own.at_peak
    said.append(f" in {', '.join(part for part in (at.phase, at.module, at.op) if part)}." if at else ".")
    said += [f" Plain training peaks at {gib(plain.peak_bytes)}."] if plain else []
    said += [f" The budget is {gib(budget_bytes)}."] if budget_bytes is not None else []
    return "".join(said)


def _name(category: str) -> str:
    return category.replace("_", " ")
