"""Results in a terminal: at most 100 columns, read without colour, nothing that moves."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.constrain import Constrain

from memfit.core.device import Device
from memfit.core.results import Estimate, Plan, Result, Run, Verdict
from memfit.report.terminal.estimate import estimate_view, estimates_view
from memfit.report.terminal.evaluation import evaluation_view
from memfit.report.terminal.listing import devices_view, document_view
from memfit.report.terminal.outcome import run_view, verdict_view
from memfit.report.terminal.plan import plan_view

__all__ = ["MOST_COLUMNS", "Shown", "devices_view", "estimates_view", "render", "to_text"]

MOST_COLUMNS = 100
Shown = Result | Mapping[str, Any] | Sequence[Device] | Sequence[Estimate]


def render(result: Shown, *, every_point: bool = False) -> RenderableType:
    """A rich renderable, at most 100 columns wide, of a result, a document, or a list of devices or estimates.

    A plan's frontier is thinned to what is read at a glance, unless `every_point` is wanted.
    """
    shown = plan_view(result, every_point=every_point) if isinstance(result, Plan) else _view(result)
    return Constrain(shown, MOST_COLUMNS)


def to_text(result: Shown, width: int = MOST_COLUMNS, *, every_point: bool = False) -> str:
    """The same as plain text without colour; no line is longer than `width` or ends in spaces."""
    sink = io.StringIO()
    Console(
        file=sink, width=width, color_system=None, force_terminal=False, highlight=False, emoji=False, markup=False
    ).print(render(result, every_point=every_point))
    return "\n".join(line.rstrip() for line in sink.getvalue().rstrip().splitlines()) + "\n"


def _view(result: Shown) -> RenderableType:
    match result:
        case Estimate():
            return estimate_view(result)
        case Verdict():
            return verdict_view(result)
        case Run():
            return run_view(result)
        case Result():
            return document_view(result.to_dict())
        case {"schema": "memfit.evaluation/1", "predicted": _}:
            return evaluation_view(result)
        case Mapping():
            return document_view(result)
        case _:
            return _list_view(result)


def _list_view(results: Sequence[Device] | Sequence[Estimate]) -> RenderableType:
    devices = [one for one in results if isinstance(one, Device)]
    return devices_view(devices) if devices else estimates_view([one for one in results if isinstance(one, Estimate)])
