"""`memfit prove TARGET`: plain against planned, in fresh processes, under the system's limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from memfit.cli import options
from memfit.cli.output import conclude, document_only
from memfit.cli.progress import say


def prove(
    target: options.Target,
    budget: options.Budget = None,
    plan: options.PlanFile = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps to compare.")] = 5,
    enforce: Annotated[bool, typer.Option(help="Let the system refuse memory above the budget.")] = True,
    device: options.Device = None,
    host_budget: options.HostBudget = None,
    disk_budget: options.DiskBudget = None,
    fidelity: options.Fidelity = None,
    settings: options.Settings = None,
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> int:
    """Plain against planned: in budget, the same result?

    Exit codes: 0 proven (plain dying under the limit is expected), 4 the planned run died, 5 another result, 6 alive
    but over its budget.
    """
    with document_only(as_json):
        from memfit.cli import planning
        from memfit.cli.running import seed_of
        from memfit.prove import error_of, prove_target
        from memfit.report import save_html, to_text

        asked = planning.request(target, settings, budget=budget, device=device, host_budget=host_budget,
                                 disk_budget=disk_budget, fidelity=fidelity, plan_file=plan, runs=True)
        made = planning.require_fit(planning.planned(asked))
        verdict = prove_target(target, asked.settings, made, steps=steps, enforce=enforce, seed=seed_of(asked.settings),
                               on_event=telling())
        if html:
            save_html(html, [verdict, made], f"memfit prove {target}")
        text = to_text(verdict)
    return conclude(verdict.to_dict(), text, as_json, error_of(verdict))


def telling() -> Callable[[str, dict[str, Any]], None]:
    """On a terminal, one line when a side begins and when its steps are done."""
    words = {"warm": "started", "compared": "steps done, timing it", "measured": "peak measured"}

    def told(side: str, event: dict[str, Any]) -> None:
        word = words.get(event["kind"])
        if word is not None:
            say(f"  {side}: {word}")

    return told
