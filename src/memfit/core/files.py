"""Writing files so that nothing is ever half written: beside, then rename."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memfit.core.errors import UsageError


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` by way of a temporary file in the same folder. Raises UsageError if it cannot."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder", "give the name of a file")
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


def toml_text(document: Mapping[str, Any]) -> str:
    """A document of JSON types as TOML, which has no null: keys without a value are left out."""
    import tomlkit

    return tomlkit.dumps(_without_none(document))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value]
    return value
