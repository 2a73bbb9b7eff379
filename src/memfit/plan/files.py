"""Plans as files: saved as TOML, read, edited, applied again; the JSON of a plan is read as well."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memfit.core.errors import UsageError
from memfit.core.files import toml_text, write_atomic
from memfit.core.results import (
    Budget,
    FrontierPoint,
    Peak,
    Plan,
    PlannedStrategy,
    Predicted,
    Rejected,
)
from memfit.core.units import parse_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pyright: ignore[reportMissingImports]

_HEADER = "# A memfit plan. Edit the strategies and apply it again: memfit train TARGET --plan this-file\n"


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write the plan beside `path`, then rename. Raises UsageError if it cannot be written."""
    write_atomic(Path(path), _HEADER + toml_text(plan.to_dict()))


def read_plan(path: str | Path) -> Plan:
    """Read a plan. Raises UsageError for a file that is missing, neither TOML nor JSON, or of another version."""
    try:
        document = _parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the plan {path}: {error.strerror}",
                         "make one: memfit plan TARGET --budget S -o plan.toml") from None
    except ValueError as error:  # TOML, JSON and UTF-8 errors are all of this kind
        raise UsageError(f"{path} is not a plan file: {str(error).splitlines()[0]}",
                         "make a new one: memfit plan TARGET -o plan.toml") from None
    schema = document.pop("schema", None)
    if schema != Plan.schema:
        raise UsageError(f"{path} has the schema {schema!r}; this memfit reads {Plan.schema!r}",
                         "make a new one: memfit plan TARGET -o plan.toml")
    try:
        return _as_plan(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} is no whole plan: {type(error).__name__} {error}",
                         "make a new one: memfit plan TARGET -o plan.toml") from None


def _parse(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return tomllib.loads(text)
    document = json.loads(text)
    assert isinstance(document, dict)
    return document


def check_belongs(plan: Plan, model_hash: str) -> None:
    """Raise UsageError if the plan was made for another model or by another version."""
    import memfit

    if plan.model_hash and plan.model_hash != model_hash:
        raise UsageError(f"the plan was made for another model ({plan.target}, parameters {plan.model_hash}; "
                         f"this one has {model_hash})", "make a plan for this model: memfit plan TARGET -o plan.toml")
    if plan.memfit_version and _series(plan.memfit_version) != _series(memfit.__version__):
        raise UsageError(f"the plan was made by memfit {plan.memfit_version}; this is {memfit.__version__}",
                         "make it again: memfit plan TARGET -o plan.toml")


def _series(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _as_plan(d: Mapping[str, Any]) -> Plan:
    return Plan(
        target=d["target"], device=d["device"],
        budget=_budget(d["budget"]), fits=bool(d["fits"]), fidelity=d["fidelity"],
        strategies=tuple(PlannedStrategy(s["name"], s.get("settings", {}), s.get("fidelity", ""), s.get("why", ""))
                         for s in d.get("strategies", [])),
        predicted=_predicted(d["predicted"]), baseline=_predicted(d["baseline"]), slowdown=d["slowdown"],
        floor_bytes=d["floor_bytes"], rejected=tuple(Rejected(**r) for r in d.get("rejected", [])),
        frontier=tuple(FrontierPoint(p["peak_bytes"], p["slowdown"], tuple(p.get("strategies", ())), p["simulated"])
                       for p in d.get("frontier", [])),
        largest_batch=d.get("largest_batch"), took_s=d["took_s"], model_hash=d.get("model_hash", ""),
        memfit_version=d.get("memfit_version", ""), notes=tuple(d.get("notes", ())))


def _budget(d: Mapping[str, Any]) -> Budget:
    """Sizes may be edited, and written as on the command line."""
    host, disk = (None if d.get(name) is None else parse_size(d[name]) for name in ("host_bytes", "disk_bytes"))
    return Budget(parse_size(d["device_bytes"]), host, disk)


def _predicted(d: Mapping[str, Any]) -> Predicted:
    return Predicted(Peak(**d["peak"]), d["step_s"])
