"""`memfit prove TARGET`: plain against planned, in fresh processes, under the system's limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from memfit.cli import options
from memfit.cli.output import document_only, show

if TYPE_CHECKING:
    from memfit.core.results import Verdict


def prove(
    target: options.Target,
    budget: options.Budget = None,
    plan: options.PlanFile = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps to compare.")] = 5,
    enforce: Annotated[bool, typer.Option(help="Let the system refuse memory above the budget.")] = True,
    device: options.Device = None,
    host_budget: options.HostBudget = None,
    fidelity: options.Fidelity = "resampled",
    settings: options.Settings = None,
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> int:
    """Prove that the planned run stays in the budget and gives the same result as plain PyTorch."""
    with document_only(as_json):
        from memfit.cli.planning import planned
        from memfit.cli.running import require_fit
        from memfit.jobs.targets import parse_settings
        from memfit.prove import prove_target
        from memfit.report import save_html, to_text

        made = require_fit(planned(target, settings or [], budget=budget, device=device, host_budget=host_budget,
                                   fidelity=fidelity, plan_file=plan))
        verdict = prove_target(target, parse_settings(settings or []), made, steps=steps, enforce=enforce)
        if html:
            save_html(html, [verdict, made], f"memfit prove {target}")
        text = to_text(verdict)
    show(verdict.to_dict(), text, as_json)
    return exit_code(verdict)


def exit_code(verdict: Verdict) -> int:
    """4: the planned run died; 5: another result; 6: alive but over budget; else 0 (plain dying is expected)."""
    import sys

    from memfit.prove import error_of

    error = error_of(verdict)
    if error is None:
        return 0
    print(f"memfit: {error.message} ({error.advice})", file=sys.stderr)
    return error.code
