"""A strategy's settings on one short line: long lists of module names become `encoder.layer.0-11 (12 modules)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memfit.report.format import yes_no

_Key = tuple[tuple[str, ...], tuple[str, ...]]  # what stands before and behind a numbered part of a dotted name
_MOST_GROUPS = 4


def mix_text(strategies: Iterable[Mapping[str, Any]]) -> str:
    """`micro-batches [count=4] + checkpoint [h.0-11 (12 modules)]`; `plain` for an empty mix."""
    return " + ".join(strategy_text(str(one["name"]), one.get("settings") or {}) for one in strategies) or "plain"


def strategy_text(name: str, settings: Mapping[str, Any]) -> str:
    """The name with its settings in brackets, or the name alone."""
    inside = settings_text(settings)
    return f"{name} [{inside}]" if inside else name


def settings_text(settings: Mapping[str, Any]) -> str:
    """All settings, `key=value`; lists of names without their key, which their count names."""
    return ", ".join(_setting(key, value) for key, value in settings.items())


def names_text(names: Sequence[str], noun: str = "modules") -> str:
    """Dotted names, numbered ones joined to ranges, with their count where there is more than one."""
    if not names:
        return f"no {noun}"
    groups = _groups(names)
    shown = ", ".join(groups[:_MOST_GROUPS]) + (", ..." if len(groups) > _MOST_GROUPS else "")
    return shown if len(names) == 1 else f"{shown} ({len(names)} {noun})"


def _setting(key: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return _listing(key, value)
    if isinstance(value, Mapping):
        return f"{key}=({settings_text(value)})"
    return f"{key}={_scalar(value)}"


def _listing(key: str, values: Sequence[Any]) -> str:
    if values and all(isinstance(one, str) for one in values):
        return names_text(values, key)
    shown = ", ".join(_scalar(one) for one in values[:_MOST_GROUPS])
    return f"{key}=[{shown}{', ...' if len(values) > _MOST_GROUPS else ''}]"


def _scalar(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return yes_no(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _groups(names: Sequence[str]) -> list[str]:
    """Names that differ in one number only, joined; in the order in which each group first appears."""
    common = Counter(key for name in dict.fromkeys(names) for key in _keys(name))
    members: dict[_Key, list[int]] = {}
    for name in dict.fromkeys(names):
        keys = _keys(name)
        key = max(keys, key=lambda one: common[one]) if keys else (tuple(name.split(".")), ())
        numbers = members.setdefault(key, [])
        if keys:
            numbers.append(int(name.split(".")[len(key[0])]))
    return [_group(key, numbers) for key, numbers in members.items()]


def _keys(name: str) -> list[_Key]:
    parts = tuple(name.split("."))
    return [(parts[:at], parts[at + 1 :]) for at, part in enumerate(parts) if part.isdecimal()]


def _group(key: _Key, numbers: Sequence[int]) -> str:
    before, behind = key
    middle = [_ranges(numbers)] if numbers else []
    return ".".join([*before, *middle, *behind]) or "(whole model)"


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3,7` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for one in sorted(set(numbers)):
        if runs and one == runs[-1][1] + 1:
            runs[-1][1] = one
        else:
            runs.append([one, one])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
