"""`memfit plan TARGET`: the fastest mix of strategies that fits."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from memfit.cli import options
from memfit.cli.output import document_only, show


def plan(
    target: options.Target,
    budget: options.Budget = None,
    device: options.Device = None,
    host_budget: options.HostBudget = None,
    fidelity: options.Fidelity = "resampled",
    settings: options.Settings = None,
    frontier: Annotated[bool, typer.Option("--frontier", help="Show every point from plain to smallest.")] = False,
    largest_batch: Annotated[bool, typer.Option("--largest-batch", help="Also find the largest batch that fits.")] = False,
    output: Annotated[Optional[str], typer.Option("-o", "--output", metavar="FILE", help="Write the plan (.toml, .json, .py).")] = None,  # noqa: UP045
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> int:
    """Find the fastest mix of memory-saving strategies within a budget."""
    with document_only(as_json):
        from memfit.cli.planning import planned
        from memfit.report import to_text

        made = planned(target, settings or [], budget=budget, device=device, host_budget=host_budget, fidelity=fidelity,
                       largest_batch=largest_batch)
        text = to_text(made)
        if output and made.fits:
            _write(made, output)
        if html:
            from memfit.report import save_html

            save_html(html, [made], f"memfit plan {target}")
    if not made.fits:
        from memfit.plan.advice import does_not_fit

        if not as_json:
            print(text)
        raise does_not_fit(made)
    show(made.to_dict(), text, as_json)
    return 0


def _write(made: object, output: str) -> None:
    from pathlib import Path

    from memfit.core.files import write_atomic
    from memfit.core.results import Plan
    from memfit.plan import write_plan

    assert isinstance(made, Plan)
    if output.endswith(".json"):
        made.save(output)
    elif output.endswith(".py"):
        write_atomic(Path(output), made.code())
    else:
        write_plan(made, output)
