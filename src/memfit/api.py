"""The public names."""

from __future__ import annotations

from typing import Any

from memfit.core.errors import UsageError
from memfit.core.results import Estimate, Plan, Verdict, register_html
from memfit.jobs import Job
from memfit.plan import estimate_job, make_plan
from memfit.plan.advice import does_not_fit
from memfit.plan.target import named_device
from memfit.prove import prove_job
from memfit.report.html import notebook
from memfit.train import Session
from memfit.train.session import choices_of

__all__ = ["Job", "Plan", "Session", "Verdict", "apply", "estimate", "fit", "plan", "prove"]

register_html(notebook)


def estimate(job: Job, device: str | None = None, plan: Plan | None = None) -> Estimate:
    """What a training step of the job needs on a device (`cpu`, `cuda`, a catalogue name); nothing runs.

    Raises Untraceable if the step cannot be traced on fake tensors, UsageError for an unknown device.
    """
    return estimate_job(job, device=device, choices=choices_of(plan) if plan else ())


def plan(
    job: Job,
    budget: str | int | None = None,
    device: str | None = None,
    host_budget: str | int | None = None,
    fidelity: str = "resampled",
    largest_batch: bool = False,
    disk_budget: str | int | None = None,
) -> Plan:
    """The fastest mix of strategies within the budget (bytes, `"8GiB"`, `"40%"` of plain; default: what is free).

    `fidelity` is the lowest that is allowed: bitwise, reordered, resampled, reduced, adapted. Raises DoesNotFit,
    with the floor in `.plan.floor_bytes`, where nothing allowed fits.
    """
    from memfit.train.probing import barred_strategies

    barred, notes = barred_strategies(job)
    made = make_plan(job, budget=budget, device=device, host_budget=host_budget, disk_budget=disk_budget, fidelity=fidelity,
                     barred=barred, notes=notes, want_largest_batch=largest_batch)
    if not made.fits:
        raise does_not_fit(made)
    return made


def apply(plan: Plan, job: Job) -> Session:
    """Apply a plan to a job; `session.step(batch)` trains.

    Raises UsageError if it was made for another model, or for a card: jobs run on the CPU.
    """
    _require_cpu(plan.device)
    return Session(job, plan)


def fit(job: Job, budget: str | int | None = None, **options: Any) -> Session:
    """`plan` and `apply` in one: a session that trains the job within the budget."""
    _require_cpu(options.get("device"))
    return apply(_plan(job, budget, **options), job)


def _require_cpu(device: Any) -> None:
    found = named_device(device)
    if found.kind != "cpu":
        raise UsageError(f"{found.name} can be predicted and planned for, but nothing runs there: jobs run on the CPU",
                         "leave out device, or take the step to that machine as plain PyTorch: plan.code()")


_plan = plan


def prove(
    job: Job,
    budget: str | int | None = None,
    steps: int = 5,
    *,
    plan: Plan | None = None,
    fidelity: str = "resampled",
    enforce: bool = True,
) -> Verdict:
    """Run plain and planned in fresh processes: within budget? same result? at what speed?

    The job is shipped by cloudpickle; where that fails, UsageError asks for a TARGET.
    """
    made = plan if plan is not None else _plan(job, budget, fidelity=fidelity)
    _require_cpu(made.device)
    return prove_job(job, made, steps=steps, enforce=enforce)
