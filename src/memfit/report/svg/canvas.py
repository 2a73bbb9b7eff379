"""Writing SVG: escaped elements, text that is measured before it is placed, the frame that all pictures share."""

from __future__ import annotations

import zlib
from html import escape

FONT = "system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif"
SIZE = 13  # of text, in CSS pixels
NARROW = 560  # below this width a picture is laid out for a phone

# Okabe and Ito's palette, told apart with any kind of colour vision; grey for what is small and not of interest.
COLOURS = {
    "parameters": "#0072b2",
    "buffers": "#8a8f98",
    "optimizer_state": "#56b4e9",
    "inputs": "#cc79a7",
    "gradients": "#009e73",
    "activations": "#e69f00",
    "temporaries": "#d55e00",
    "workspace": "#b5a642",
}
OTHER = "#8a8f98"
LIMIT = "#c2185b"  # the budget
OWN = "#0b6fb8"  # the plan
PLAIN = "#6f7681"

_SLIM, _BROAD = frozenset("iljtfrI.,:;'|!()[]/ -"), frozenset("mwMWGOQ@%")


def element(name: str, content: str = "", /, **attributes: str | float) -> str:
    """`<name ...>content</name>`; attribute values are escaped, `content` is markup already."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def number(value: float) -> str:
    """A coordinate with one decimal, without a trailing zero."""
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, words: str, /, **attributes: str | float) -> str:
    """Words at a baseline."""
    return element("text", escape(words), x=x, y=y, **attributes)


def hover(words: str) -> str:
    """What a pointer that rests on the parent element shows."""
    return element("title", escape(words))


def text_width(words: str, size: float = SIZE) -> float:
    """About how wide `words` are at most: pictures are laid out without a browser, for a font that runs wide."""
    return size * sum(0.36 if one in _SLIM else 0.92 if one in _BROAD else 0.62 for one in words)


def clipped(words: str, width: float, size: float = SIZE) -> str:
    """`words`, their middle left out where they are wider than `width`: both ends of a module path say something."""
    if text_width(words, size) <= width:
        return words
    keep = len(words) - 1
    while keep > 2 and text_width(words[: keep // 2] + "…" + words[-(keep - keep // 2) :], size) > width:
        keep -= 1
    return words[: keep // 2] + "…" + words[-(keep - keep // 2) :]


def pill(x: float, y: float, words: str, colour: str, *, low: float, high: float) -> str:
    """White words on a coloured ground, centred at `x` but kept between `low` and `high`; readable on anything."""
    half = text_width(words, SIZE) / 2 + 6  # bold runs wider
    middle = max(low + half, min(high - half, x))
    ground = element("rect", x=middle - half, y=y - 10, width=2 * half, height=20, rx=4, fill=colour)
    return ground + text(middle, y + 4.3, words, fill="#fff", font_size=SIZE - 1, font_weight=600, text_anchor="middle")


def legend(items: list[tuple[str, str]], x: float, y: float, width: float) -> tuple[str, float]:
    """Swatches `(mark-up of a 14 by 12 mark at the origin, label)` in rows no wider than `width`; and their height."""
    parts: list[str] = []
    at, row = 0.0, 0
    for mark, label in items:
        needed = 20 + text_width(label)
        if at and at + needed > width:
            at, row = 0.0, row + 1
        moved = f"translate({number(x + at)},{number(y + row * 22)})"
        parts.append(element("g", mark + text(20, 10.5, label), transform=moved))
        at += needed + 18
    return "".join(parts), (row + 1) * 22.0 if items else 0.0


def square(colour: str) -> str:
    """A legend's mark for an area."""
    return element("rect", width=12, height=12, rx=2, fill=colour)


def dash(colour: str, pattern: str = "") -> str:
    """A legend's mark for a line."""
    style = {"stroke_dasharray": pattern} if pattern else {}
    return element("line", x1=0, x2=14, y1=6, y2=6, stroke=colour, stroke_width=2.5, **style)


def picture(width: float, height: float, body: str, title: str, description: str) -> str:
    """The whole `<svg>`: scales to its place, named and described for those who cannot see it."""
    name = f"mf{zlib.crc32((body + title + description).encode()):08x}"
    head = element("title", escape(title), id=f"{name}t") + element("desc", escape(description), id=f"{name}d")
    return element(
        "svg",
        head + body,
        viewBox=f"0 0 {number(width)} {number(height)}",
        width="100%",
        role="img",
        aria_labelledby=f"{name}t {name}d",
        font_family=FONT,
        font_size=SIZE,
        fill="currentColor",
        style=f"display:block;max-width:{number(width)}px;height:auto",
    )


def _value(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else number(value)
