"""The run's log: one JSON object a line, whole lines only."""

from __future__ import annotations

import json
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from memfit.core.errors import UsageError
from memfit.core.files import write_atomic


class RunLog:
    """`log.jsonl` in the run's folder; without a folder nothing is written."""

    def __init__(self, run: Path | None) -> None:
        self._path = run / "log.jsonl" if run is not None else None
        self._file: TextIOWrapper | None = None

    def begin(self, step: int) -> None:
        """Start the log; what it says of later steps than `step` (they are done again) is dropped.

        Raises UsageError if the folder cannot be written to.
        """
        if self._path is None:
            return
        kept = [line for line in _lines(self._path) if _step_of(line) <= step] if step else []
        write_atomic(self._path, "".join(line + "\n" for line in kept))
        try:
            self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - closed on exit
        except OSError as error:
            raise UsageError(f"cannot write {self._path}: {error.strerror or error}",
                             "choose another folder with --out") from None

    def write(self, **entry: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line).get("step", 0))
    except (ValueError, AttributeError):
        return float("inf")  # cut off when the run was killed
