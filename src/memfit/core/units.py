"""Reading sizes. Bytes are `int` everywhere inside; only `report` writes them for people."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from memfit.core.errors import UsageError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
_UNITS = {"b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_ADVICE = "write a number with B, KiB, MiB, GiB, TiB or KB, MB, GB, TB, a plain number of bytes, or a share such as 40%"
_SIZE = re.compile(r"([+-]?[0-9]*\.?[0-9]+)\s*([a-zA-Z]*|%)")


def parse_size(text: str | int, *, whole_bytes: int | None = None) -> int:
    """Bytes named by `text`: `8GiB`, `8 gb`, `500 MiB`, `1024`, or `40%` of `whole_bytes`.

    Raises UsageError for anything else (`8G` is refused with a suggestion, as it is read both ways), for sizes
    that are not positive, and for shares when there is nothing to take a share of.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise UsageError(f"{text!r} is not a size", _ADVICE)
    if isinstance(text, int):
        return _positive(Decimal(text), str(text))
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size", _ADVICE)
    number, unit = _number(match[1], text), match[2].lower()
    if unit == "%":
        return _share(number, text, whole_bytes)
    if unit in {"k", "m", "g", "t"}:
        upper = unit.upper()
        raise UsageError(f"{text!r} has the unit {upper}, which is read both as {upper}iB and {upper}B",
                         f"write {match[1]}{upper}iB (powers of two) or {match[1]}{upper}B (powers of ten)")
    if unit and unit not in _UNITS:
        raise UsageError(f"{text!r} has the unknown unit {match[2]!r}", _ADVICE)
    return _positive(number * _UNITS[unit or "b"], text)


def is_share(text: str | int) -> bool:
    """Whether `text` is a percentage, so that its value depends on the plain step."""
    return isinstance(text, str) and text.strip().endswith("%")


def _number(digits: str, text: str) -> Decimal:
    try:
        return Decimal(digits)
    except InvalidOperation:
        raise UsageError(f"{text!r} is not a size", _ADVICE) from None


def _share(percent: Decimal, text: str, whole_bytes: int | None) -> int:
    if percent > 100:
        raise UsageError(f"{text!r} is more than the plain step needs", "give 100% or less, or a size in bytes")
    if percent <= 0:
        raise UsageError(f"{text!r} is not a positive share", "give a share between 0% and 100%")
    if whole_bytes is None:
        raise UsageError(f"{text!r} is a share, and nothing is known here to take it of", _ADVICE)
    return max(1, int(percent * whole_bytes / 100))


def _positive(value: Decimal, text: str) -> int:
    if value < 1:
        raise UsageError(f"{text!r} is not a positive size", _ADVICE)
    return int(value)
