"""Text: Python's own documentation and library sources, or a text file or folder, in pieces read when asked for."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memfit.core.errors import UsageError

PACKAGES = ("asyncio", "email", "multiprocessing", "unittest", "importlib", "xml", "http", "logging")
"""Packages of the standard library whose sources are told apart in classification."""
MOST_BYTES = 4 * 2**20
MOST_CLASS_BYTES = 256 * 2**10
TEXT_SUFFIXES = frozenset({
    ".txt", ".md", ".rst", ".tex", ".log", ".csv", ".tsv", ".json", ".xml", ".html", ".py", ".pyi", ".c", ".h", ".cc",
    ".cpp", ".hpp", ".js", ".ts", ".java", ".go", ".rs", ".rb", ".sh"})


@dataclass(frozen=True)
class Source:
    """The first `size_bytes` of a file, with the class that it belongs to (0 where there are none)."""

    path: Path
    size_bytes: int
    label: int = 0


class Corpus:
    """Pieces of at most `piece_bytes`, each from the start of a line, so that their lengths differ.

    Holds file names and sizes only. Raises UsageError if there is no text.
    """

    def __init__(self, sources: Sequence[Source], piece_bytes: int, classes: int = 1) -> None:
        self._sources = [source for source in sources if source.size_bytes > 0]
        self._piece_bytes = piece_bytes
        self.classes = classes
        counts = [-(-source.size_bytes // piece_bytes) for source in self._sources]
        self._ends = np.cumsum(np.asarray(counts, dtype=np.int64))
        if not counts:
            raise UsageError("the text is empty", "give data=FILE or data=FOLDER with text in it")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def piece(self, index: int) -> tuple[bytes, int]:
        """The text of one piece and its class. Raises UsageError if the file cannot be read."""
        place = int(np.searchsorted(self._ends, index, side="right"))
        source = self._sources[place]
        before = int(self._ends[place - 1]) if place else 0
        start = (index - before) * self._piece_bytes
        text = _read(source.path, start, min(self._piece_bytes, source.size_bytes - start))
        line_start = text.find(b"\n") + 1 if start else 0
        return text[line_start:] or text, source.label


def running_text(data: str | None) -> list[Source]:
    """Sources without classes: the standard library's documentation and modules, or the file or folder `data`."""
    if data is None:
        library = _library()
        return _up_to([library / "pydoc_data" / "topics.py", *sorted(library.glob("*.py"))], MOST_BYTES)
    path = Path(str(data))
    if path.is_file():
        return _up_to([path])
    sources = _up_to(_texts(path))
    if not sources:
        raise UsageError(f"{path} has no text files", f"known endings: {' '.join(sorted(TEXT_SUFFIXES))}")
    return sources


def classified_text(data: str | None, classes: int) -> tuple[list[Source], int]:
    """Sources with classes, and how many there are: packages of the standard library, or the sub-folders of `data`."""
    root = _library() if data is None else Path(str(data))
    if data is not None and not root.is_dir():
        raise UsageError(f"{root} is not a folder: classification needs one sub-folder for each class",
                         "give data=FOLDER, or --set task=mlm for text without classes")
    names = PACKAGES[:classes] if data is None else [
        inner.name for inner in sorted(root.iterdir()) if inner.is_dir() and not inner.name.startswith(".")]
    if len(names) > classes:
        raise UsageError(f"{root} has {len(names)} classes and the model {classes}", f"--set classes={len(names)}")
    most = MOST_CLASS_BYTES if data is None else None
    sources = [source for label, name in enumerate(names) for source in _up_to(_texts(root / name), most, label)]
    if not sources:
        raise UsageError(f"{root} has no text files in sub-folders", "give data=FOLDER, a sub-folder for each class")
    return sources, len(names)


def _library() -> Path:
    folder = Path(sysconfig.get_path("stdlib"))
    if not (folder / "argparse.py").is_file():
        raise UsageError(f"this Python has no library sources in {folder}", "give --set data=FILE or data=FOLDER")
    return folder


def _texts(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UsageError(f"there is no file or folder {folder}", "give data=FILE or data=FOLDER with text in it")
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in TEXT_SUFFIXES and path.is_file())


def _up_to(paths: Iterable[Path], most: int | None = None, label: int = 0) -> list[Source]:
    sources, total = [], 0
    for path in paths:
        size = path.stat().st_size if path.is_file() else 0
        size = size if most is None else min(size, most - total)
        if size > 0:
            sources.append(Source(path, size, label))
            total += size
    return sources


def _read(path: Path, start: int, size: int) -> bytes:
    try:
        with path.open("rb") as opened:
            opened.seek(start, os.SEEK_SET)
            return opened.read(size)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the file and its permissions") from error
