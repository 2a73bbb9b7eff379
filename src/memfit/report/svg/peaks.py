"""A few peaks as bars, one under the other, with the budget upright through them."""

from __future__ import annotations

from collections.abc import Sequence

from memfit.report.format import gib
from memfit.report.svg import canvas
from memfit.report.svg.canvas import element, hover, text, text_width

_BAR, _GAP = 26, 12
_COLOURS = {"plain": canvas.PLAIN}


def peaks(
    rows: Sequence[tuple[str, int]], *, budget_bytes: int | None = None, width: int = 900, title: str = "Peak memory"
) -> str:
    """The picture as an `<svg>` string, `width` CSS pixels wide; an empty string without rows.

    `rows` are a name and bytes; the one named `plain` is drawn grey.
    """
    longest = max([size for _, size in rows] + [budget_bytes or 0], default=0)
    if not rows or longest <= 0:
        return ""
    left = 12 + max(text_width(name) for name, _ in rows)
    per_byte = (width - left - 6) / longest
    top = 34.0 if budget_bytes is not None else 6.0
    bottom = top + len(rows) * (_BAR + _GAP)
    line = -1.0 if budget_bytes is None else left + budget_bytes * per_byte
    bars = "".join(
        _bar(name, size, left, top + index * (_BAR + _GAP), per_byte, line) for index, (name, size) in enumerate(rows)
    )
    body = bars + _budget(budget_bytes, line, top, bottom - _GAP, width)
    said = ", ".join(f"{name} {gib(size)}" for name, size in rows)
    return canvas.picture(
        width, bottom, body, title, said + (f"; budget {gib(budget_bytes)}." if budget_bytes is not None else ".")
    )


def _bar(name: str, size: int, left: float, y: float, per_byte: float, line: float) -> str:
    bar = element(
        "rect",
        hover(f"{name}: {gib(size)}"),
        x=left,
        y=y,
        width=max(size * per_byte, 1),
        height=_BAR,
        rx=3,
        fill=_COLOURS.get(name, canvas.OWN),
    )
    return (
        text(left - 10, y + 17.5, name, text_anchor="end")
        + bar
        + _size(size, left, y + 17.5, left + size * per_byte, line)
    )


def _size(size: int, left: float, y: float, end: float, line: float) -> str:
    """The size at the end of its bar, inside where there is room, and beside the line of the budget, never under it."""
    words, room = gib(size), text_width(gib(size)) + 12
    crossed = end - room < line < end
    inside = line if crossed else end
    if inside - left > room:
        return text(inside - 9, y, words, font_weight=600, fill="#fff", text_anchor="end")
    return text((line if end - 2 <= line < end + room else end) + 9, y, words, font_weight=600)


def _budget(budget_bytes: int | None, x: float, top: float, bottom: float, width: int) -> str:
    if budget_bytes is None:
        return ""
    line = element(
        "line", x1=x, x2=x, y1=top - 12, y2=bottom + 4, stroke=canvas.LIMIT, stroke_width=2.5, stroke_dasharray="6 3"
    )
    return line + canvas.pill(x, top - 20, f"budget {gib(budget_bytes)}", canvas.LIMIT, low=0, high=width)
