"""Progress for people: on stderr, and only where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Event = Mapping[str, Any]


def say(text: str) -> None:
    """One line on what is being done now."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


@contextmanager
def step_bar(label: str, total: int | None) -> Iterator[Callable[[Event], None]]:
    """A bar that moves with each `step` event and shows its loss; `total` None: its length is not known."""
    if not sys.stderr.isatty():
        yield lambda event: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)

        def advance(event: Event) -> None:
            loss = event.get("loss")
            shown = f"{label} loss {loss:.4f}" if isinstance(loss, float) else label
            bar.update(task, completed=event.get("step"), total=event.get("steps") or total, description=shown)

        yield advance
