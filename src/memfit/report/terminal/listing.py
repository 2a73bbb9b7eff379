"""Devices, and any other document, in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from memfit.core.device import Device
from memfit.report.format import gib, number, rate, seconds, yes_no
from memfit.report.settings import settings_text
from memfit.report.terminal import parts

_UNITS = ("_bytes", "_s")


def devices_view(devices: Sequence[Device], here: str = "") -> Table:
    """One line each; `here` names the device of this machine, which is marked."""
    names = ["", "name", "memory", "bandwidth", "float32", "bfloat16", "compute", "title"]
    made = parts.table(*names, numbers=names[2:7])
    made.columns[1].no_wrap = True  # a name is there to be copied
    for one in devices:
        capability = "-" if one.compute_capability is None else ".".join(str(part) for part in one.compute_capability)
        made.add_row(
            "->" if one.name == here else "",
            one.name,
            gib(one.capacity_bytes),
            rate(one.bandwidth, "B/s"),
            _flops(one, "float32"),
            _flops(one, "bfloat16"),
            capability,
            Text(one.title),
        )
    return made


def _flops(device: Device, dtype: str) -> str:
    return rate(device.rates[dtype], "FLOP/s") if dtype in device.rates else "-"


def document_view(document: Mapping[str, Any]) -> Group:
    """Any other document: its figures by name, read with the unit that the name ends in."""
    what = str(document.get("schema", "")).removeprefix("memfit.").split("/")[0]
    rows = {name: value for name, value in document.items() if name != "schema"}
    return Group(*([parts.title(what)] if what else []), parts.facts(_rows(rows)))


def _rows(values: Mapping[str, Any]) -> list[tuple[str, RenderableType]]:
    return [(_label(name), _value(name, value)) for name, value in values.items()]


def _label(name: str) -> str:
    return name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")


def _value(name: str, value: Any) -> RenderableType:
    if isinstance(value, Mapping):
        unit = next((suffix for suffix in _UNITS if name.endswith(suffix)), "")  # {"file_bytes": {"before": ...}}
        inner = {f"{key}{unit}": one for key, one in value.items()}
        return parts.facts(_rows(inner))
    if isinstance(value, (list, tuple)):
        return _listed(name, value)
    return _scalar(name, value)


def _listed(name: str, values: Sequence[Any]) -> RenderableType:
    if values and all(isinstance(one, Mapping) for one in values):
        return Group(*(parts.facts(_rows(one)) for one in values))
    return settings_text({name: list(values)}) if values else "none"


def _scalar(name: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return yes_no(value)
    if name.endswith("_bytes") and isinstance(value, int):
        return gib(value)
    if isinstance(value, (int, float)) and name.endswith("_s") and not name.endswith("per_s"):
        return seconds(value)
    return number(value) if isinstance(value, float) else str(value)
