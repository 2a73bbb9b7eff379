"""What goes where: one JSON document on stdout and all else on stderr, or text for people on stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

from memfit.core.errors import DoesNotFit, MemfitError

_STDOUT, _STDERR = 1, 2


def json_mode(words: Sequence[str]) -> bool:
    """Whether `--json` is meant for memfit: not behind a `--`, nor behind the program that `exec` runs."""
    ours = list(words)
    if "--" in ours:
        ours = ours[: ours.index("--")]
    if ours[:1] == ["exec"]:
        program = next((place for place, word in enumerate(ours) if place and not word.startswith("-")), len(ours))
        ours = ours[:program]
    return "--json" in ours


@contextmanager
def document_only(as_json: bool) -> Iterator[None]:
    """With `--json`, whatever prints to stdout meanwhile (a TARGET's own prints, too) goes to stderr."""
    if not as_json:
        yield
        return
    stdout = sys.stdout
    stdout.flush()
    kept = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)  # for what C code and child processes write
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        stdout.flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def show(document: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Print the document, or the text without the empty lines at its end."""
    print(_line(document) if as_json else text.rstrip("\n"), flush=True)


def conclude(document: Mapping[str, Any], text: str, as_json: bool, error: MemfitError | None = None) -> int:
    """Print how a command ended; gives the exit code. An `error` stands in its document, and on one line on stderr."""
    show(document if error is None else with_error(document, error), text, as_json)
    return 0 if error is None else tell(error)


def with_error(document: Mapping[str, Any], error: MemfitError) -> dict[str, Any]:
    """A command's own document plus `error{code, message, advice}`."""
    return {**document, "error": {"code": error.code, "message": error.message, "advice": error.advice}}


def fail(error: MemfitError, as_json: bool) -> int:
    """One line on stderr (and with `--json` one document on stdout); gives the exit code."""
    if as_json:
        plan = error.plan if isinstance(error, DoesNotFit) else None
        document = plan.to_dict() if plan is not None else error.document
        print(_line(document or error.to_dict()), flush=True)
    return tell(error)


def tell(error: MemfitError) -> int:
    """The error as one line on stderr; gives its exit code."""
    advice = f" ({error.advice})" if error.advice else ""
    print(" ".join(f"memfit: {error.message}{advice}".split()), file=sys.stderr, flush=True)
    return error.code


def silence_stdout() -> None:
    """Whoever read our output has closed it (`memfit plan ... | head`): write what is left nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def finite(value: Any) -> Any:
    """The document without NaN and infinities, which JSON does not have: null instead."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return value


def _line(document: Mapping[str, Any]) -> str:
    return json.dumps(finite(document), allow_nan=False)
