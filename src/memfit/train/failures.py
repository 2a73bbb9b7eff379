"""Telling what went wrong in a run: memory that was refused, a mistake in the user's code, or ours."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from memfit.core.errors import MemfitError, RanOutOfMemory, UsageError
from memfit.jobs.blame import users_line
from memfit.launch import looks_out_of_memory

_ADVICE = "give a larger budget, a smaller batch, or allow a lower fidelity (--fidelity reduced)"
_PREFIX = re.compile(r"^\[enforce fail at [^\]]*\] [^.]*\. (DefaultCPUAllocator: )?")


class NotFinite(UsageError):
    """The loss of a step is NaN or infinite; nothing was updated in that step."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error is an allocator, operator or library that was refused memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, OSError)) and looks_out_of_memory(f"{type(error).__name__}: {error}"))


def out_of_memory(error: BaseException, where: str) -> RanOutOfMemory:
    """The error for the user: what was asked for and where."""
    asked = _PREFIX.sub("", " ".join(str(error).split()))[:200] or type(error).__name__
    return RanOutOfMemory(f"out of memory {where}: {asked}", _ADVICE)


@contextmanager
def told_to_user(what: str) -> Iterator[None]:
    """Around code that calls the user's: their exceptions become a UsageError with file and line; refused memory
    becomes RanOutOfMemory; exceptions that no line of the user's is part of pass on."""
    try:
        yield
    except MemfitError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            told: MemfitError = out_of_memory(error, f"in {what}")
        else:
            place = users_line(error)
            if place is None:
                raise
            words = " ".join(str(error).split())[:300]
            told = UsageError(f"{what} raised {type(error).__name__}: {words}", f"see {place}")
        # the frames of the failed step hold its tensors: they must not live as long as the error does
        traceback.clear_frames(error.__traceback__)
        raise told from None


def told_half_done(error: BaseException, stepped: int) -> None:
    """Add to the error of a step that it cannot be taken back: so many parameters have been stepped."""
    if isinstance(error, MemfitError):
        error.message = f"{error.message}; {stepped} parameters had been stepped already (step-in-backward)"
        error.advice = f"{error.advice}; go on from the last checkpoint" if error.advice else "go on from the last checkpoint"
        error.args = (error.message,)
