"""Whatever ends a command, as an error for the user: one line, and an exit code of the contract."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from memfit.core.errors import Interrupted, MemfitError, RanOutOfMemory, UsageError

_ClickUsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer carries its own click, or uses click's


def told(error: BaseException) -> MemfitError:
    """The error as ours. What nobody foresaw is an internal error; MEMFIT_DEBUG=1 shows its traceback."""
    if isinstance(error, MemfitError):
        return error
    if isinstance(error, _ClickUsageError):
        return UsageError(_message(error), _help_of(error))
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return Interrupted("interrupted")
    if isinstance(error, SystemExit):
        return UsageError(f"the target's code ended the process with sys.exit({error.code!r})", "take that call out")
    return _out_of_memory(error) or _internal(error)


def _message(error: Exception) -> str:
    shown = getattr(error, "format_message", lambda: str(error))()
    return " ".join(shown.split()).rstrip(".")


def _help_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "memfit")
    what = "the commands" if command == "memfit" else "arguments and options"
    return f"{command} --help lists {what}"


def _out_of_memory(error: BaseException) -> MemfitError | None:
    from memfit.launch import looks_out_of_memory

    line = f"{type(error).__name__}: {error}"
    if not looks_out_of_memory(line):
        return None
    return RanOutOfMemory(f"this process was refused memory: {line.splitlines()[0][:200]}",
                          "give the job its model as a function and its data lazily: planning need not hold them then")


def _internal(error: BaseException) -> MemfitError:
    if os.environ.get("MEMFIT_DEBUG"):
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].name}, line {frames[-1].lineno})" if frames else ""
    text = str(error).strip().splitlines()
    return MemfitError(f"internal error: {type(error).__name__}: {text[0] if text else ''}{where}",
                       "set MEMFIT_DEBUG=1 for the traceback, and please report it")
