"""Pieces that the terminal views share: tables without clutter, bars made of characters, the headline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from memfit.report.wording import Headline

GOOD, BAD, QUIET = "bold green", "bold red", "dim"
_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class Bar:
    """A bar `share` (0 to 1) of `width` characters long; `#` where the terminal knows ASCII only."""

    share: float
    width: int = 24

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = min(max(self.share, 0.0), 1.0) * self.width
        if options.ascii_only:
            yield Segment("#" * (round(cells) or int(self.share > 0)))
            return
        part = _EIGHTHS[int(cells % 1 * 8)].strip()
        yield Segment("█" * int(cells) + part or ("▏" if self.share > 0 else ""))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)


def title(what: str, *context: str) -> Text:
    """`plan  vit-mini on cpu`: what this is, then of what."""
    return Text.assemble((what, "bold"), "  ", (" ".join(part for part in context if part), ""))


def headline(line: Headline) -> Text:
    """The word first, so that it is read without colour."""
    style = "bold" if line.good is None else GOOD if line.good else BAD
    return Text.assemble((line.word, style), ": " if line.text else "", line.text)


def table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """An empty table; columns named in `numbers` are set flush right and never broken, others fold."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        is_number = name in numbers
        made.add_column(name, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    return made


def facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Name and value, one a line."""
    made = Table.grid(padding=(0, 2))
    made.add_column(style=QUIET, no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, Text(value) if isinstance(value, str) else value)
    return made


def section(name: str, body: RenderableType) -> Group:
    """A titled block, set off by an empty line."""
    return Group("", Text(name, style="bold"), Padding(body, (0, 0, 0, 2)))


def notes(lines: Sequence[str]) -> list[RenderableType]:
    """Notes as a section, or nothing."""
    if not lines:
        return []
    made = Table.grid(padding=(0, 1))
    made.add_column()
    made.add_column(overflow="fold")
    for line in lines:
        made.add_row("-", Text(line))
    return [section("Notes", made)]


def categories(by_category: Mapping[str, int]) -> list[tuple[str, int]]:
    """Categories that hold anything, largest first."""
    return sorted(((name, size) for name, size in by_category.items() if size), key=lambda one: -one[1])


def category_name(name: str) -> str:
    return name.replace("_", " ")
