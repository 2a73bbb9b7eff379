"""A results file that grows by rows, so that a run which was cut short goes on where it was."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows; none where there is no file yet."""
    return list(csv.DictReader(path.open())) if path.exists() else []


def append_rows(path: Path, fields: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows at the end, under a head line where the file is new."""
    path.parent.mkdir(exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fields)
        if new:
            writer.writeheader()
        writer.writerows(rows)
