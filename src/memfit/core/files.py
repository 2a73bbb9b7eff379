"""Writing files so that nothing is ever half written: beside, then rename."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from memfit.core.errors import UsageError


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` by way of a temporary file in the same folder. Raises UsageError if it cannot."""
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}", "choose another folder with -o or --out") from None
