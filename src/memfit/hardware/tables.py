"""Reading TOML on every supported Python."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from memfit.core.errors import UsageError

_toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


def read_toml(path: Path) -> dict[str, Any]:
    """The file's content. Raises UsageError, naming the file and the line, where it cannot be read."""
    try:
        return _toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, _toml.TOMLDecodeError) as error:
        raise UsageError(f"{path} is not a TOML file: {error}") from None
