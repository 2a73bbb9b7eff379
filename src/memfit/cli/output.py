"""What goes where: one JSON document on stdout and all else on stderr, or text for people on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from memfit.core.errors import MemfitError


def json_mode(words: Sequence[str]) -> bool:
    """Whether `--json` stands among the words before a `--`."""
    ours = list(words)
    return "--json" in (ours[: ours.index("--")] if "--" in ours else ours)


@contextmanager
def document_only(as_json: bool) -> Iterator[None]:
    """With `--json`, whatever prints to stdout meanwhile (a TARGET's own prints, too) goes to stderr."""
    if not as_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def show(document: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Print the document, or the text."""
    print(json.dumps(finite(dict(document)), allow_nan=False) if as_json else text, flush=True)


def fail(error: MemfitError, as_json: bool) -> int:
    """One line on stderr (and with `--json` one document on stdout); gives the exit code."""
    if as_json:
        plan = getattr(error, "plan", None)
        document = plan.to_dict() if plan is not None else getattr(error, "document", None)
        print(json.dumps(finite(document or error.to_dict())), flush=True)
    advice = f" ({error.advice})" if error.advice else ""
    print(f"memfit: {error.message}{advice}", file=sys.stderr, flush=True)
    return error.code


def finite(value: Any) -> Any:
    """The document without NaN and infinities, which JSON does not have: null instead."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value


def say(text: str) -> None:
    """Progress for people: to stderr, and only on a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
