"""`memfit estimate TARGET`: what a training step needs, before anything runs."""

from __future__ import annotations

from typing import Annotated, Any, Optional

import typer

from memfit.cli import options
from memfit.cli.output import document_only, show


def estimate(
    target: options.Target,
    device: options.Device = None,
    plan: options.PlanFile = None,
    settings: options.Settings = None,
    all_devices: Annotated[bool, typer.Option("--all-devices", help="Every device of the catalogue.")] = False,
    batch_sweep: Annotated[Optional[str], typer.Option(metavar="1,2,4", help="Estimate at these batch sizes.")] = None,  # noqa: UP045
    measure: Annotated[bool, typer.Option("--measure", help="If it cannot be traced, run one real step instead.")] = False,
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> int:
    """Predict the peak memory of a training step; nothing is trained."""
    with document_only(as_json):
        document, text, pages = _estimate(target, device, plan, settings or [], all_devices, batch_sweep, measure)
        if html:
            from memfit.report import save_html

            save_html(html, pages, f"memfit estimate {target}")
    show(document, text, as_json)
    return 0


def _estimate(
    target: str, device: str | None, plan: str | None, settings: list[str], all_devices: bool, sweep: str | None, measure: bool
) -> tuple[dict[str, Any], str, list[Any]]:
    from memfit.jobs.targets import parse_settings
    from memfit.recipes import load
    from memfit.report import to_text

    values = parse_settings(settings)
    if all_devices or sweep:
        return _several(target, device, values, all_devices, sweep)
    choices = _choices(plan)
    job = load(target, values)
    result = _one(job, device, choices, target, measure)
    return result.to_dict(), to_text(result), [result]


def _one(job: Any, device: str | None, choices: Any, target: str, measure: bool) -> Any:
    from memfit.core.errors import Untraceable
    from memfit.plan import estimate_job

    try:
        return estimate_job(job, device=device, choices=choices, target=target)
    except Untraceable:
        if not measure:
            raise
        from memfit.train.measured import measured_estimate

        return measured_estimate(job, target)


def _choices(plan: str | None) -> Any:
    if plan is None:
        return ()
    from memfit.train.session import choices_of
    from memfit.plan import read_plan

    return choices_of(read_plan(plan))


def _several(
    target: str, device: str | None, values: dict[str, Any], all_devices: bool, sweep: str | None
) -> tuple[dict[str, Any], str, list[Any]]:
    from memfit.plan import estimate_job
    from memfit.recipes import load
    from memfit.report import to_text

    if all_devices:
        from memfit.core.errors import UsageError

        raise UsageError("--all-devices needs predictions for CUDA cards, which are not available yet", "use --device cpu")
    results = []
    for size in _sizes(sweep or ""):
        results.append(estimate_job(load(target, {**values, "batch": size}), device=device, target=f"{target} batch={size}"))
    document = {"schema": "memfit.estimates/1", "estimates": [result.to_dict() for result in results]}
    return document, "\n\n".join(to_text(result) for result in results), results


def _sizes(sweep: str) -> list[int]:
    from memfit.core.errors import UsageError

    try:
        sizes = [int(word) for word in sweep.split(",")]
    except ValueError:
        raise UsageError(f"--batch-sweep {sweep!r} is not a list of batch sizes", "write it as 1,2,4") from None
    if not sizes or min(sizes) < 1:
        raise UsageError(f"--batch-sweep {sweep!r} has a size below 1", "write it as 1,2,4")
    return sizes
