"""`memfit train TARGET`: plan, then train in a fresh process inside the budget."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from memfit.cli import options
from memfit.cli.output import document_only, show


def train(
    target: options.Target,
    budget: options.Budget = None,
    plan: options.PlanFile = None,
    steps: Annotated[Optional[int], typer.Option(metavar="N", min=1, help="Train this many steps.")] = None,  # noqa: UP045
    epochs: Annotated[Optional[int], typer.Option(metavar="N", min=1, help="Train this many epochs.")] = None,  # noqa: UP045
    enforce: Annotated[bool, typer.Option("--enforce", help="Let the system refuse memory above the budget.")] = False,
    out: Annotated[Optional[str], typer.Option(metavar="DIR", help="Checkpoints, log and report go here.")] = None,  # noqa: UP045
    resume: Annotated[Optional[str], typer.Option(metavar="DIR", help="Go on from a run's checkpoint.")] = None,  # noqa: UP045
    device: options.Device = None,
    host_budget: options.HostBudget = None,
    fidelity: options.Fidelity = "resampled",
    settings: options.Settings = None,
    as_json: options.AsJson = False,
) -> int:
    """Train within a budget; with --out, checkpoints are whole at any moment and --resume goes on from them."""
    with document_only(as_json):
        from memfit.cli.planning import planned
        from memfit.cli.running import require_fit, run_training, train_spec
        from memfit.jobs.targets import parse_settings

        made = require_fit(planned(target, settings or [], budget=budget, device=device, host_budget=host_budget,
                                   fidelity=fidelity, plan_file=plan))
        spec = train_spec(target, parse_settings(settings or []), made, steps=steps, epochs=epochs, enforce=enforce,
                          out=out, resume=resume)
        document, events, error = run_training(spec, target)
        if error is not None:
            _attach(error, spec, events)
            raise error
        assert document is not None
        if out:
            _write_report(document, made, events, out)
    show(document, _text(document), as_json)
    return _code(document)


def _text(document: dict[str, Any]) -> str:
    from memfit.report import to_text

    return to_text(as_run(document))


def as_run(document: dict[str, Any]) -> Any:
    """The run document as a result."""
    from dataclasses import fields

    from memfit.core.results import Run

    return Run(**{f.name: document[f.name] for f in fields(Run) if f.name in document})


def _attach(error: Any, spec: dict[str, Any], events: list[dict[str, Any]]) -> None:
    """Exit codes 4 and 6 give the command's own document with what is known, and the error."""
    if error.code not in (4, 6):
        return
    losses = [event.get("loss") for event in events]
    error.document = {
        "schema": "memfit.run/1", "steps": len(events), "loss_first": losses[0] if losses else None,
        "loss_last": losses[-1] if losses else None, "peak_bytes": None, "rss_peak_bytes": None,
        "predicted_peak_bytes": spec["predicted_peak_bytes"], "budget_bytes": spec["budget_bytes"], "within_budget": False,
        "enforced": spec["enforce"], "oom_recovered": 0, "step_s_median": None, "samples_per_s": None, "plan": spec["plan"],
        "error": {"code": error.code, "message": error.message, "advice": error.advice}}


def _write_report(document: dict[str, Any], made: Any, events: list[dict[str, Any]], out: str) -> None:
    from pathlib import Path

    from memfit.plan import write_plan
    from memfit.report import save_html

    losses = [event["loss"] for event in events if isinstance(event.get("loss"), float)]
    save_html(Path(out) / "report.html", [as_run(document), made], f"memfit train {made.target}",
              losses={"planned": losses} if losses else None)
    write_plan(made, Path(out) / "plan.toml")


def _code(document: dict[str, Any]) -> int:
    """6 where an unenforced run stayed alive above its budget."""
    if document.get("within_budget") is not False:
        return 0
    import sys

    print("memfit: the run finished, but above its budget (raise --budget, or add --enforce to let the system refuse)",
          file=sys.stderr)
    return 6
