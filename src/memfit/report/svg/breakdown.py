"""What is alive at the peak, by category: one bar each, or two where plain and planned are compared."""

from __future__ import annotations

from collections.abc import Mapping

from memfit.report.format import gib, percent
from memfit.report.svg import canvas
from memfit.report.svg.canvas import NARROW, OTHER, element, hover, text, text_width

_BAR, _GAP = 18, 12


def breakdown(
    sides: Mapping[str, Mapping[str, int]], *, width: int = 900, title: str = "What is alive at the peak"
) -> str:
    """The picture as an `<svg>` string, `width` CSS pixels wide; an empty string where nothing is alive.

    `sides` are bytes by category under a name: one side, or `plain` and `planned`; the last is drawn full.
    """
    names = _ordered(sides)
    if not names:
        return ""
    longest = max(size for side in sides.values() for size in side.values())
    whole = {side: sum(values.values()) for side, values in sides.items()}
    left = 12 + max(text_width(_name(name)) for name in names)
    room = width - left - 14 - (text_width("1023.9 MiB, 100 %") if width > NARROW else text_width("1023.9 MiB"))
    body, y = "", 4.0
    for name in names:
        middle = y + len(sides) * _BAR / 2
        body += text(left - 10, middle + 4.5, _name(name), text_anchor="end")
        for index, (side, values) in enumerate(sides.items()):
            body += _bar(
                name, side, values.get(name, 0), whole[side], left, y, room / longest, width, index == len(sides) - 1
            )
            y += _BAR
        y += _GAP
    legend, height = canvas.legend(_legend(sides, whole), 4, y + 4, width - 8)
    return canvas.picture(width, y + height + (4 if height else 0), body + legend, title, _description(sides))


def _bar(
    name: str, side: str, size: int, whole: int, left: float, y: float, per_byte: float, width: int, full: bool
) -> str:
    words = gib(size) + (f", {percent(size / whole)}" if width > NARROW and whole else "")
    colour = canvas.COLOURS.get(name, OTHER)
    style = {} if full else {"fill_opacity": 0.35, "stroke": colour, "stroke_dasharray": "4 2"}
    bar = element(
        "rect",
        hover(f"{side}, {_name(name)}: {words}"),
        x=left,
        y=y + 1,
        width=max(size * per_byte, 1),
        height=_BAR - 3,
        rx=2,
        fill=colour,
        **style,
    )
    return bar + text(left + size * per_byte + 7, y + 13, words, fill_opacity=0.85, font_size=canvas.SIZE - 1)


def _ordered(sides: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Categories that hold anything on any side, largest first."""
    most = {name: max(side.get(name, 0) for side in sides.values()) for side in sides.values() for name in side}
    return sorted((name for name, size in most.items() if size), key=lambda name: -most[name])


def _legend(sides: Mapping[str, Mapping[str, int]], whole: Mapping[str, int]) -> list[tuple[str, str]]:
    if len(sides) < 2:
        return []
    last = list(sides)[-1]
    faint = element(
        "rect",
        width=12,
        height=12,
        rx=2,
        fill="currentColor",
        fill_opacity=0.2,
        stroke="currentColor",
        stroke_dasharray="3 2",
    )
    return [(canvas.square("currentColor") if side == last else faint, f"{side}, {gib(whole[side])}") for side in sides]


def _description(sides: Mapping[str, Mapping[str, int]]) -> str:
    return " ".join(
        f"{side}: " + ", ".join(f"{_name(name)} {gib(size)}" for name, size in values.items() if size) + "."
        for side, values in sides.items()
    )


def _name(category: str) -> str:
    return category.replace("_", " ")
