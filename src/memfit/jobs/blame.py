"""Which line of the user's an error comes from."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import memfit

_OURS = Path(memfit.__file__).parent
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))


def users_line(error: BaseException) -> str | None:
    """`FILE, line N`: the innermost line that is neither of an installed package nor of memfit (a recipe's counts as
    ours); None if there is none."""
    found = None
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        inside = any(folder in path.parents for folder in (_OURS, *_INSTALLED))
        if not inside and not frame.filename.startswith("<"):
            found = f"{frame.filename}, line {frame.lineno}"
    return found
