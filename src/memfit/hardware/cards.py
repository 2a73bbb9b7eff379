"""A card of a TOML file as a target device: units, sources, and what is wrong with a user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.units import GIB, MIB, parse_size

_GB, _TERA = 10**9, 10**12
_LANE_GB = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}  # one direction, after encoding
_LINK_REACHED = 0.8
_LABEL_USABLE = 0.97

NUMBERS = frozenset({"label_gb", "usable_mib", "multiprocessors", "bandwidth_gb", "float32_tflops", "link_gb",
                     "overhead_s"})
FIELDS = NUMBERS | {"name", "title", "source", "memory", "like", "capacity", "compute_capability", "pcie",
                    "times_float32", "tflops"}
REQUIRED = ("float32_tflops", "bandwidth_gb", "compute_capability", "multiprocessors")


def to_device(name: str, fields: Mapping[str, Any], sources: Mapping[str, str]) -> Device:
    """`fields` of one card, those of its family included. `sources` gives the text for `usable`, `label`, `pcie`...

    Raises UsageError for an unknown field, one that is missing, and a value that is none.
    """
    _check(name, fields)
    float32 = float(fields["float32_tflops"])
    others = fields.get("tflops") or {key: factor * float32 for key, factor in fields.get("times_float32", {}).items()}
    rates = {"float32": float32 * _TERA, **{key: float(value) * _TERA for key, value in others.items()}}
    major, minor = fields["compute_capability"]
    card = str(fields["source"])
    return Device(
        name=name, kind="cuda", capacity_bytes=_capacity(name, fields), rates=rates,
        bandwidth=float(fields["bandwidth_gb"]) * _GB, link=_link(fields), overhead_s=float(fields["overhead_s"]),
        compute_capability=(int(major), int(minor)), multiprocessors=int(fields["multiprocessors"]),
        title=str(fields.get("title", name)),
        sources={"capacity_bytes": sources[_memory_source(fields)], "rates": card, "bandwidth": card,
                 "compute_capability": card, "multiprocessors": card,
                 "link": sources["link" if "link_gb" in fields else "pcie"], "overhead_s": sources["overhead"]})


def _capacity(name: str, fields: Mapping[str, Any]) -> int:
    if "capacity" in fields:
        return parse_size(fields["capacity"])
    if "usable_mib" in fields:
        return int(fields["usable_mib"] * MIB)
    if "label_gb" in fields:
        return int(fields["label_gb"] * GIB * _LABEL_USABLE)
    raise UsageError(f"card {name!r} has no memory", 'give capacity = "11.7GiB", or label_gb = 12')


def _memory_source(fields: Mapping[str, Any]) -> str:
    if "capacity" in fields:
        return "user"
    return str(fields.get("memory", "usable")) if "usable_mib" in fields else "label"


def _link(fields: Mapping[str, Any]) -> float:
    if "link_gb" in fields:
        return float(fields["link_gb"]) * _GB * _LINK_REACHED
    generation, lanes = fields["pcie"]
    return _LANE_GB[generation] * lanes * _GB * _LINK_REACHED


def _check(name: str, fields: Mapping[str, Any]) -> None:
    unknown = sorted(set(fields) - FIELDS)
    if unknown:
        raise UsageError(f"card {name!r} has the unknown field {unknown[0]!r}", f"known: {', '.join(sorted(FIELDS))}")
    for key in REQUIRED:
        if key not in fields:
            raise UsageError(f"card {name!r} has no {key}", 'give it, or like = "rtx3060" to take it from there')
    for key in NUMBERS & set(fields):
        if isinstance(fields[key], bool) or not isinstance(fields[key], (int, float)) or fields[key] <= 0:
            raise UsageError(f"card {name!r}: {key} = {fields[key]!r} is not a positive number")
    for key in ("tflops", "times_float32"):
        _check_rates(name, key, fields.get(key, {}))
    _check_pair(name, "compute_capability", fields["compute_capability"], range(100), "[8, 6]")
    _check_pair(name, "pcie", fields["pcie"], _LANE_GB, "[4, 16]")


def _check_rates(name: str, key: str, rates: Any) -> None:
    if not isinstance(rates, dict) or not all(type(one) in (int, float) and one > 0 for one in rates.values()):
        raise UsageError(f"card {name!r}: {key} = {rates!r} is no table of rates", f"{key} = {{ float16 = 2.0 }}")


def _check_pair(name: str, key: str, pair: Any, first: Any, example: str) -> None:
    fine = isinstance(pair, list) and len(pair) == 2 and all(type(one) is int for one in pair)
    if not fine or pair[0] not in first or pair[1] < 0:
        raise UsageError(f"card {name!r}: {key} = {pair!r} is not understood", f"{key} = {example}")
