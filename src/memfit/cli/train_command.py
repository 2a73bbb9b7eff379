"""`memfit train TARGET`: plan, then train in a fresh process inside the budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memfit.cli import options
from memfit.cli.output import conclude, document_only, with_error
from memfit.core.errors import MemfitError, OverBudget, RanOutOfMemory, UsageError

if TYPE_CHECKING:
    from memfit.cli.running import Ended
    from memfit.core.results import Plan

_PLAN_NAME = "plan.toml"

Steps = Annotated[options.Count, typer.Option(metavar="N", min=1, help="Train this many steps.")]
Epochs = Annotated[options.Count, typer.Option(metavar="N", min=1, help="Train this many epochs.")]
Enforce = Annotated[bool, typer.Option("--enforce", help="Let the system refuse memory above the budget.")]
Out = Annotated[options.Text, typer.Option(metavar="DIR", help="Checkpoints, log, plan and report go here.")]
Resume = Annotated[options.Text, typer.Option(metavar="DIR", help="Go on with the run in this folder, under its plan.")]


def train(
    target: options.Target,
    budget: options.Budget = None,
    plan: options.PlanFile = None,
    steps: Steps = None,
    epochs: Epochs = None,
    enforce: Enforce = False,
    out: Out = None,
    resume: Resume = None,
    device: options.Device = None,
    host_budget: options.HostBudget = None,
    disk_budget: options.DiskBudget = None,
    fidelity: options.Fidelity = None,
    settings: options.Settings = None,
    as_json: options.AsJson = False,
) -> int:
    """Plan, then train inside the budget.

    With --out, checkpoints are whole at any moment, and --resume goes on from the newest.
    """
    with document_only(as_json):
        from memfit.cli import planning
        from memfit.cli.running import run_training, train_spec
        from memfit.plan import write_plan
        from memfit.report import to_text

        if steps is not None and epochs is not None:
            raise UsageError("--steps and --epochs were both given", "leave one of them out")
        out, plan = _goes_on(resume, out, plan, budget) if resume is not None else (out, plan)
        asked = planning.request(target, settings, budget=budget, device=device, host_budget=host_budget,
                                 disk_budget=disk_budget, fidelity=fidelity, plan_file=plan, runs=True)
        made = planning.require_fit(planning.planned(asked))
        if out is not None:
            write_plan(made, Path(out) / _PLAN_NAME)  # a folder that cannot be written to is told before the run
        spec = train_spec(target, asked.settings, made, steps=steps, epochs=epochs, enforce=enforce, out=out,
                          resume=resume)
        ended = run_training(spec, target)
        document = finished(ended, spec)
        if out is not None:
            _write_report(ended, made, out)
        text = to_text(as_run(document)) if ended.error is None else ""
    return conclude(document, text, as_json, _over_budget(document))


def as_run(document: dict[str, Any]) -> Any:
    """The run document as a result."""
    from dataclasses import fields

    from memfit.core.results import Run

    return Run(**{f.name: document[f.name] for f in fields(Run) if f.name in document})


def _goes_on(resume: str, out: str | None, plan: str | None, budget: str | None) -> tuple[str, str | None]:
    """The folder and the plan file of a run that goes on: where it was and its own, unless others are given."""
    from memfit.train.checkpoints import find_checkpoint, run_of

    run = run_of(find_checkpoint(Path(resume)))
    own = run / _PLAN_NAME
    if plan is None and budget is None and own.is_file():
        plan = str(own)
    return out or str(run), plan


def finished(ended: Ended, spec: dict[str, Any]) -> dict[str, Any]:
    """The run's document. Raises the error that ended it, with what is known of the run where memory was refused."""
    from memfit.cli.running import unfinished

    if ended.error is None:
        if ended.run is None:
            raise MemfitError("the training process ended without a result")
        return ended.run
    if isinstance(ended.error, (RanOutOfMemory, OverBudget)):
        ended.error.document = with_error(unfinished(spec, ended), ended.error)
    raise ended.error


def _write_report(ended: Ended, made: Plan, out: str) -> None:
    from memfit.report import save_html

    assert ended.run is not None
    losses = ended.losses
    save_html(Path(out) / "report.html", [as_run(ended.run), made], f"memfit train {made.target}",
              losses={"planned": losses} if losses else None)


def _over_budget(document: dict[str, Any]) -> OverBudget | None:
    """Where an unenforced run stayed alive above its budget."""
    if document.get("within_budget") is not False:
        return None
    from memfit.report import gib

    return OverBudget(
        f"the run finished, but above its budget of {gib(document['budget_bytes'])}: {gib(document['peak_bytes'])} of "
        f"tensors, {gib(document['rss_peak_bytes'])} resident",
        "give a larger --budget, or add --enforce to let the system refuse")
