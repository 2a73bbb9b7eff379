"""Results as JSON text: one document, always readable by a strict parser."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from memfit.core.results import Result, plain


def to_json(result: Result | Mapping[str, Any]) -> str:
    """The JSON document of a result or a mapping, ending in a newline; NaN and infinities become null."""
    return json.dumps(_strict(plain(result)), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    return [_strict(inner) for inner in value] if isinstance(value, list) else value
