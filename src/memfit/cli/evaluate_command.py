"""`memfit evaluate TARGET`: the job's own evaluation, without a graph, in a fresh process inside a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memfit.cli import options
from memfit.cli.output import conclude, document_only, with_error
from memfit.core.errors import MemfitError, OverBudget, RanOutOfMemory

if TYPE_CHECKING:
    from memfit.cli.planning import Request


def evaluate(
    target: options.Target,
    budget: options.Budget = None,
    plan: options.PlanFile = None,
    device: options.Device = None,
    host_budget: options.HostBudget = None,
    fidelity: options.Fidelity = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
) -> int:
    """Evaluate the model of TARGET without a graph.

    The budget (or that of a plan file) is enforced where the system can; without one there is no limit.
    """
    with document_only(as_json):
        from memfit.cli import planning
        from memfit.cli.running import seed_of
        from memfit.launch import run_limited
        from memfit.report import to_text

        asked = planning.request(target, settings, budget=budget, device=device, host_budget=host_budget,
                                 fidelity=fidelity, plan_file=plan, runs=True)
        budget_bytes = _budget_bytes(asked)
        spec = {"target": target, "settings": dict(asked.settings), "seed": seed_of(asked.settings),
                "budget_bytes": budget_bytes, "enforce": budget_bytes is not None}
        result = run_limited("memfit.train.evaluation_worker", spec)
        document = _document(spec, result)
        text = to_text(document)
    return conclude(document, text, as_json, _over_budget(document))


def _budget_bytes(asked: Request) -> int | None:
    """The budget in bytes; a share is one of what the plain training step needs."""
    from memfit.core.units import is_share, parse_size

    if asked.plan_file is not None:
        from memfit.cli.planning import planned

        return planned(asked).budget.device_bytes
    if asked.budget is None:
        return None
    if not is_share(asked.budget):
        return parse_size(asked.budget)
    from memfit.plan import estimate_job
    from memfit.recipes import load

    whole = estimate_job(load(asked.target, asked.settings), device=asked.device)
    return parse_size(asked.budget, whole_bytes=whole.peak.allocated_bytes)


def _document(spec: dict[str, Any], result: Any) -> dict[str, Any]:
    """The `memfit.evaluation/1`. Raises the worker's error, with a document where memory was refused."""
    error: MemfitError | None = result.error
    if error is None:
        return result.result["evaluation"]
    if isinstance(error, RanOutOfMemory):
        known = {"schema": "memfit.evaluation/1", "target": spec["target"], "metrics": {}, "rss_peak_bytes": None,
                 "budget_bytes": spec["budget_bytes"], "within_budget": False, "enforced": spec["enforce"],
                 "took_s": result.took_s, "notes": []}
        error.document = with_error(known, error)
    raise error


def _over_budget(document: dict[str, Any]) -> OverBudget | None:
    if document.get("within_budget") is not False:
        return None
    from memfit.report import gib

    return OverBudget(f"the evaluation was alive but above its budget of {gib(document['budget_bytes'])}: "
                      f"{gib(document['rss_peak_bytes'])} resident",
                      "give a larger --budget, or evaluate in smaller batches")
