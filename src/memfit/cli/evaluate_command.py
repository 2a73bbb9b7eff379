"""`memfit evaluate TARGET`: the job's own evaluation, without a graph, in a fresh process inside a budget."""

from __future__ import annotations

from typing import Any

from memfit.cli import options
from memfit.cli.output import document_only, show


def evaluate(
    target: options.Target,
    budget: options.Budget = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
) -> int:
    """Evaluate the model of TARGET without a graph."""
    with document_only(as_json):
        from memfit.core.units import parse_size
        from memfit.jobs.targets import parse_settings
        from memfit.launch import run_worker

        values = parse_settings(settings or [])
        budget_bytes = parse_size(budget) if budget is not None else None
        spec = {"target": target, "settings": values, "seed": int(values.get("seed", 0)), "budget_bytes": budget_bytes}
        result = run_worker("memfit.train.evaluation_worker", spec, limited=budget_bytes is not None)
        if result.error is not None:
            raise result.error
        document: dict[str, Any] = (result.result or {})["evaluation"]
    from memfit.report import to_text

    show(document, to_text(document), as_json)
    return 0
