"""`memfit estimate TARGET`: what a training step needs, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memfit.cli import options
from memfit.cli.output import document_only, show

if TYPE_CHECKING:
    from memfit.core.device import Device
    from memfit.core.results import Estimate
    from memfit.core.strategy import Choice
    from memfit.core.trace import Trace
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
        sizes = _sizes(batch_sweep) if batch_sweep is not None else None
        _check(asked, all_devices, sizes, Files(snapshot, trace))
        listed = sizes is not None or all_devices
        largest = None
        if all_devices:
            results = _everywhere(asked)
        elif sizes is not None:
            results, largest = _sweep(asked, sizes, measure)
        else:
            results = [_estimate(asked, None, measure, Files(snapshot, trace))]
        if html:
            save_html(html, results, f"memfit estimate {target}")
        document = _listed(results, largest) if listed else results[0].to_dict()
        text = to_text(results) + _largest_line(results, largest) if listed else to_text(results[0])
    show(document, text, as_json)
    return 0


@dataclass(frozen=True)
class Files:
    """Where to write what the allocator of a CUDA card would do."""

    snapshot: str | None = None
    trace: str | None = None

    def write(self, steps: Sequence[Trace], device: Device) -> None:
        """Both files, as far as they are wanted."""
        if self.snapshot is None and self.trace is None:
            return
        from memfit.simulate.cuda_files import PredictedTimeline
        from memfit.simulate.cuda_prediction import environment_setting

        timeline = PredictedTimeline(steps, environment_setting(device))
        if self.snapshot is not None:
            timeline.write_snapshot(Path(self.snapshot))
        if self.trace is not None:
            timeline.write_chrome_trace(Path(self.trace))


def _listed(results: Sequence[Estimate], largest: int | None) -> dict[str, Any]:
    """`memfit.estimates/1`: `estimates`, each a `memfit.estimate/1`, in the order asked for; `largest_batch`, the largest
    one that fits (null where it was not looked for, or where none does)."""
    return {"schema": "memfit.estimates/1", "estimates": [one.to_dict() for one in results], "largest_batch": largest}


def _largest_line(results: Sequence[Estimate], largest: int | None) -> str:
    if largest is not None:
        return f"\nThe largest batch that fits on {results[0].device}: {largest}\n"
    return ""


def _everywhere(asked: Any) -> list[Estimate]:
    from memfit.cli.progress import say
    from memfit.hardware import all_devices
    from memfit.plan.everywhere import estimate_everywhere
    from memfit.recipes import load

    say(f"estimating {asked.target} on every card")
    job = load(asked.target, asked.settings)
    choices = _choices(asked.plan_file, job)
    return list(estimate_everywhere(job, all_devices(), choices, asked.target))


def _sweep(asked: Any, sizes: Sequence[int], measure: bool) -> tuple[list[Estimate], int | None]:
    """The estimates, and on a card the largest batch that fits."""
    from memfit.plan.fitting import largest_fitting

    results = [_estimate(asked, size, measure) for size in sizes]
    if results[0].fits is None:
        return results, None
    known = dict(zip(sizes, results, strict=True))
    return results, largest_fitting(lambda size: _estimate(asked, size, measure), known)


def _estimate(asked: Any, size: int | None, measure: bool, files: Files = Files()) -> Estimate:
    """One estimate, at batch size `size` or the target's own; measured where it is allowed and cannot be traced."""
    from memfit.core.errors import Untraceable
    from memfit.plan import estimate_job
    from memfit.recipes import load

    settings = asked.settings if size is None else {**asked.settings, "batch": size}
    name = asked.target if size is None else f"{asked.target} batch={size}"
    job = load(asked.target, settings)
    choices = _choices(asked.plan_file, job)
    try:
        made = estimate_job(job, device=asked.device, choices=choices, target=name, on_steps=files.write)
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


def _check(asked: Any, all_devices: bool, sizes: Sequence[int] | None, files: Files) -> None:
    """Options that do not go together; files show an allocator's work, which the CPU does not have."""
    from memfit.core.errors import UsageError
    from memfit.hardware import find_device

    if all_devices and asked.device is not None:
        raise UsageError("--all-devices and --device were both given", "leave one of them out")
    if all_devices and sizes is not None:
        raise UsageError("--all-devices and --batch-sweep were both given", "leave one of them out")
    for option, given in (("--snapshot", files.snapshot), ("--trace", files.trace)):
        if given is None:
            continue
        if all_devices or sizes is not None:
            raise UsageError(f"{option} writes one estimate, and several were asked for",
                             f"leave out {'--all-devices' if all_devices else '--batch-sweep'}")
        if asked.device is None or find_device(asked.device).kind == "cpu":
            raise UsageError(f"{option} shows the work of a CUDA card's allocator, and this estimate is for the CPU",
                             "add --device, such as --device rtx3060")


def _sizes(sweep: str) -> list[int]:
    from memfit.core.errors import UsageError

    try:
        sizes = [int(word) for word in sweep.split(",")]
    except ValueError:
        raise UsageError(f"--batch-sweep {sweep!r} is not a list of batch sizes", "write it as 1,2,4") from None
    if min(sizes) < 1:
        raise UsageError(f"--batch-sweep {sweep!r} has a size below 1", "write it as 1,2,4")
    return sizes
