"""An evaluation in a terminal: its metrics, its peak with and without a graph, its outputs, normalisations folded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table

from memfit.report.format import gib, number, percent, seconds
from memfit.report.terminal import parts

Document = Mapping[str, Any]
_CLAIM = "about 30 % is often said"


def evaluation_view(document: Document) -> Group:
    """Metrics first; then what one batch needs, predicted beside measured."""
    sections = [parts.section("Metrics", parts.facts((name, number(value)) for name, value in document["metrics"].items()))]
    if document.get("predicted"):
        sections.append(parts.section(f"Peak of one batch of {document['predicted']['samples']}", _peaks(document)))
        sections.append(parts.section("No graph", parts.facts(_saving(document))))
        sections.append(parts.section("Outputs", parts.facts(_outputs(document["outputs"]))))
    if document.get("folding"):
        sections.append(parts.section("BatchNorm folded", _folding(document)))
    return Group(parts.title("evaluation", document["target"]), "", parts.facts(_run(document)), *sections,
                 *parts.notes(document["notes"]))


def _run(document: Document) -> list[tuple[str, str]]:
    rows = [("took", seconds(document["took_s"]))]
    if document["rss_peak_bytes"] is not None:
        rows.append(("resident growth", gib(document["rss_peak_bytes"])))
    if document["budget_bytes"] is not None:
        how = "limit enforced by the system" if document["enforced"] else "limit not enforced"
        rows.append(("budget", f"{gib(document['budget_bytes'])}, {how}"))
    return rows


def _peaks(document: Document) -> Table:
    predicted, measured = document["predicted"], document["measured"]
    made = parts.table("", "predicted", "measured", numbers=("predicted", "measured"))
    made.add_row("without a graph", gib(predicted["peak_bytes"]), gib(measured["peak_bytes"]))
    with_graph = measured["graph_peak_bytes"]
    made.add_row("with a graph", gib(predicted["graph_peak_bytes"]), "not run" if with_graph is None else gib(with_graph))
    made.add_row("of both: weights, buffers, batch", gib(predicted["resident_bytes"]), "")
    return made


def _saving(document: Document) -> list[tuple[str, str]]:
    predicted, measured = document["predicted"], document["measured"]
    with_graph = measured["graph_peak_bytes"]
    peaks = measured if with_graph is not None else predicted
    whole, less = peaks["graph_peak_bytes"], peaks["peak_bytes"]
    above, left = whole - predicted["resident_bytes"], less - predicted["resident_bytes"]
    return [("saves of the peak", f"{percent(1 - less / max(whole, 1))} ({_CLAIM})"),
            ("saves of what is not resident", percent(1 - left / max(above, 1)))]


def _outputs(outputs: Document) -> list[tuple[str, str]]:
    known = {"reduced": "reduced batch by batch", "host": "kept on the host"}
    where = known.get(outputs["kept"], f"written to {outputs['kept']}")
    return [("each sample", gib(outputs["bytes_per_sample"])),
            (f"{outputs['samples']} samples", f"{gib(outputs['collected_bytes'])} if all are kept"), ("were", where)]


def _folding(document: Document) -> Table:
    folding, predicted, measured = document["folding"], document["predicted"], document["measured"]
    made = parts.table("", "before", "after", numbers=("before", "after"))
    made.add_row("operators", str(predicted["operators"]), str(folding["operators"]))
    made.add_row("peak, predicted", gib(predicted["peak_bytes"]), gib(folding["predicted_peak_bytes"]))
    made.add_row("peak, measured", gib(measured["peak_bytes"]), gib(folding["peak_bytes"]))
    made.add_row("time of a batch", seconds(folding["batch_before_s"]), seconds(folding["batch_s"]))
    made.add_row(f"outputs differ ({folding['pairs']} folded)", "", f"{folding['max_rel_output_diff']:.1e}")
    return made
