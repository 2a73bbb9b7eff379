"""Estimates in a terminal: one in full, several as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from memfit.core.results import Estimate
from memfit.report import wording
from memfit.report.format import gib, percent, seconds, shape
from memfit.report.terminal import parts


def estimate_view(estimate: Estimate) -> Group:
    """Peak and interval, where it is, what is alive then, the largest tensors."""
    breakdown = parts.categories(estimate.at_peak.by_category)
    return Group(
        parts.title("estimate", estimate.target, "on", estimate.device),
        parts.headline(wording.headline(estimate)),
        "",
        _facts(estimate),
        *([parts.section("Alive at the peak", _breakdown(breakdown))] if breakdown else []),
        *([parts.section("Largest tensors at the peak", _largest(estimate))] if estimate.largest else []),
        *parts.notes(estimate.notes),
    )


def _facts(estimate: Estimate) -> Table:
    peak = estimate.peak
    rows = [("reached in", wording.place(estimate.at_peak) or "unknown")]
    if estimate.device != "cpu" and peak.process_bytes:
        rows += [
            ("tensors", _span(peak.allocated_bytes, peak.allocated_low_bytes, peak.allocated_high_bytes)),
            ("reserved", _span(peak.reserved_bytes, peak.reserved_low_bytes, peak.reserved_high_bytes)),
            ("process", f"{gib(peak.process_bytes)}, what the driver shows"),
        ]
    if estimate.fits is False and estimate.capacity_bytes is not None:
        rows += [("room", f"{gib(estimate.capacity_bytes)} on {estimate.device}: {wording.shortage(estimate)}")]
    took = "measured in" if estimate.measured else "predicted in"
    return parts.facts(
        [
            *rows,
            ("first step", gib(estimate.first_step_peak_bytes)),
            ("step time", seconds(estimate.step_s)),
            (took, seconds(estimate.took_s)),
        ]
    )


def _span(value: int, low: int, high: int) -> str:
    return gib(value) if low == high else f"{gib(value)}, between {gib(low)} and {gib(high)}"


def _breakdown(rows: Sequence[tuple[str, int]]) -> Table:
    whole, longest = sum(size for _, size in rows), rows[0][1]
    made = parts.table("category", "size", "share", "", numbers=("size", "share"))
    for name, size in rows:
        made.add_row(parts.category_name(name), gib(size), percent(size / whole), parts.Bar(size / longest, 40))
    return made


def _largest(estimate: Estimate) -> Table:
    made = parts.table("size", "shape", "dtype", "category", "made by", numbers=("size",))
    for one in estimate.largest[:10]:
        made.add_row(
            gib(one.bytes),
            shape(one.shape),
            one.dtype,
            parts.category_name(one.category),
            Text(", ".join(part for part in (one.module, one.op) if part)),
        )
    return made


def estimates_view(
    estimates: Sequence[Estimate], labels: Sequence[str] = (), capacities: Mapping[str, int] | None = None
) -> Table:
    """One line each. `labels` name the lines (a batch size, ...); capacities (`capacities` by device name, or those of the
    estimates) add `fits`."""
    known = capacities or {one.device: one.capacity_bytes for one in estimates if one.capacity_bytes is not None}
    names = ["target", "device", "peak", "at most", "step time", *(["capacity", "fits"] if known else [])]
    made = parts.table(*names, numbers=("peak", "at most", "step time", "capacity"))
    for index, one in enumerate(estimates):
        capacity = known.get(one.device)
        room = one.fits if one.fits is not None else capacity is not None and one.peak.high_bytes <= capacity
        fits = ["n/a" if capacity is None else "yes" if room else "NO"]
        made.add_row(
            Text(labels[index] if index < len(labels) else one.target),
            one.device,
            gib(wording.judged_bytes(one.peak, one.device)),
            gib(one.peak.high_bytes),
            seconds(one.step_s),
            *([gib(capacity), *fits] if known else []),
        )
    return made
