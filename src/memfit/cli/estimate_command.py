"""`memfit estimate TARGET`: what a training step needs, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memfit.cli import options
from memfit.cli.output import document_only, show

if TYPE_CHECKING:
    from memfit.core.results import Estimate
    from memfit.core.strategy import Choice
    from memfit.jobs import Job

AllDevices = Annotated[bool, typer.Option("--all-devices", help="On every device of the catalogue.")]
UnderPlan = Annotated[options.Text, typer.Option("--plan", metavar="F", help="Under the strategies of a plan file.")]
Sweep = Annotated[options.Text, typer.Option(metavar="1,2,4", help="At each of these batch sizes.")]
Snapshot = Annotated[options.Text, typer.Option(metavar="F", help="Write a memory snapshot (CUDA devices).")]
Perfetto = Annotated[options.Text, typer.Option(metavar="F", help="Write a trace for Perfetto (CUDA devices).")]
Measure = Annotated[bool, typer.Option("--measure", help="If it cannot be traced, measure real steps instead.")]


def estimate(
    target: options.Target,
    device: options.Device = None,
    all_devices: AllDevices = False,
    plan: UnderPlan = None,
    settings: options.Settings = None,
    batch_sweep: Sweep = None,
    snapshot: Snapshot = None,
    trace: Perfetto = None,
    measure: Measure = False,
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> int:
    """Predict what a training step needs; nothing runs."""
    with document_only(as_json):
        from memfit.cli import planning
        from memfit.report import save_html, to_text

        asked = planning.request(target, settings, device=device, plan_file=plan)
        _refuse_what_needs_cuda(all_devices, device, snapshot, trace)
        sizes = _sizes(batch_sweep) if batch_sweep is not None else None
        results = [_estimate(asked, size, measure) for size in sizes or [None]]
        if html:
            save_html(html, results, f"memfit estimate {target}")
        document = results[0].to_dict() if sizes is None else _listed(results)
        text = to_text(results[0] if sizes is None else results)
    show(document, text, as_json)
    return 0


def _listed(results: Sequence[Estimate]) -> dict[str, Any]:
    """`memfit.estimates/1`: `estimates`, each a `memfit.estimate/1`, in the order asked for."""
    return {"schema": "memfit.estimates/1", "estimates": [one.to_dict() for one in results]}


def _estimate(asked: Any, size: int | None, measure: bool) -> Estimate:
    """One estimate, at batch size `size` or the target's own; measured where it is allowed and cannot be traced."""
    from memfit.core.errors import Untraceable
    from memfit.plan import estimate_job
    from memfit.recipes import load

    settings = asked.settings if size is None else {**asked.settings, "batch": size}
    name = asked.target if size is None else f"{asked.target} batch={size}"
    job = load(asked.target, settings)
    choices = _choices(asked.plan_file, job)
    try:
        made = estimate_job(job, device=asked.device, choices=choices, target=name)
        return replace(made, notes=(*_under(asked.plan_file, choices), *made.notes))
    except Untraceable as error:
        if not measure:
            raise
        from memfit.train.measured import measured_estimate

        return measured_estimate(load(asked.target, settings), name, choices=choices, why=error.message)


def _under(plan_file: str | None, choices: Sequence[Choice]) -> tuple[str, ...]:
    from memfit.report import mix_text

    mix = mix_text([{"name": one.name, "settings": one.settings} for one in choices])
    return (f"under the plan {plan_file}: {mix}",) if plan_file is not None else ()


def _choices(plan_file: str | None, job: Job) -> tuple[Choice, ...]:
    """The strategies of a plan that was made for this model."""
    if plan_file is None:
        return ()
    from memfit.jobs.identity import model_hash
    from memfit.plan import read_plan
    from memfit.plan.files import check_belongs
    from memfit.trace import FakeWorld, fake_job
    from memfit.train.session import choices_of

    read = read_plan(plan_file)
    check_belongs(read, model_hash(fake_job(job, FakeWorld()).model))
    return choices_of(read)


def _refuse_what_needs_cuda(all_devices: bool, device: str | None, snapshot: str | None, trace: str | None) -> None:
    """Memory is predicted for `cpu` only; what shows an allocator's work has nothing to show there."""
    from memfit.core.errors import UsageError

    if all_devices and device is not None:
        raise UsageError("--all-devices and --device were both given", "leave one of them out")
    for option, given in (("--all-devices", all_devices), ("--snapshot", snapshot), ("--trace", trace)):
        if given:
            raise UsageError(f"{option} needs predictions for CUDA devices, which are not available yet: only cpu is",
                             f"leave out {option}")


def _sizes(sweep: str) -> list[int]:
    from memfit.core.errors import UsageError

    try:
        sizes = [int(word) for word in sweep.split(",")]
    except ValueError:
        raise UsageError(f"--batch-sweep {sweep!r} is not a list of batch sizes", "write it as 1,2,4") from None
    if min(sizes) < 1:
        raise UsageError(f"--batch-sweep {sweep!r} has a size below 1", "write it as 1,2,4")
    return sizes
