"""`memfit plan TARGET`: the fastest mix of strategies that fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memfit.cli import options
from memfit.cli.output import document_only, show

if TYPE_CHECKING:
    from memfit.core.results import Plan

_KINDS = "Write the plan: .toml, .json, or .py for plain PyTorch."

Frontier = Annotated[bool, typer.Option("--frontier", help="Show every point from plain to smallest.")]
LargestBatch = Annotated[bool, typer.Option("--largest-batch", help="Also find the largest batch that fits.")]
Output = Annotated[options.Text, typer.Option("-o", "--output", metavar="FILE", help=_KINDS)]


def plan(
    target: options.Target,
    budget: options.Budget = None,
    plan: options.PlanFile = None,
    device: options.Device = None,
    host_budget: options.HostBudget = None,
    disk_budget: options.DiskBudget = None,
    fidelity: options.Fidelity = None,
    settings: options.Settings = None,
    frontier: Frontier = False,
    largest_batch: LargestBatch = False,
    output: Output = None,
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> int:
    """Find the fastest mix of strategies that fits.

    With --plan, a plan file is checked and predicted anew for this TARGET.
    """
    with document_only(as_json):
        from memfit.cli import planning
        from memfit.report import save_html, to_text

        asked = planning.request(target, settings, budget=budget, device=device, host_budget=host_budget,
                                 disk_budget=disk_budget, fidelity=fidelity, plan_file=plan)
        _check_name(output)
        made = planning.planned(asked, largest_batch=largest_batch)
        text = to_text(made, every_point=frontier)
        if output and made.fits:
            _write(made, output)
        if html:
            save_html(html, [made], f"memfit plan {target}")
    if not made.fits and not as_json:
        print(text)
    show(planning.require_fit(made).to_dict(), text, as_json)
    return 0


def _check_name(output: str | None) -> None:
    """Before the work: whether the name says what to write."""
    from memfit.core.errors import UsageError

    if output is not None and Path(output).suffix not in (".toml", ".json", ".py"):
        raise UsageError(f"-o {output} ends in none of .toml, .json and .py", f"-o {output}.toml")


def _write(made: Plan, output: str) -> None:
    from memfit.core.files import write_atomic
    from memfit.plan import write_plan

    if output.endswith(".json"):
        made.save(output)
    elif output.endswith(".py"):
        write_atomic(Path(output), made.code())
    else:
        write_plan(made, output)
