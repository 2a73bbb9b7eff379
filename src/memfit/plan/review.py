"""A plan that was read from a file, seen anew for the job that it is to be applied to: files are edited."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from memfit.apply import plan_code, plan_fidelity, strategies, strategy
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.results import Plan, PlannedStrategy, Predicted
from memfit.core.strategy import ActsOnTrace, Choice
from memfit.jobs import Job, batches
from memfit.jobs.identity import model_hash
from memfit.plan.explore import Candidate, Explorer
from memfit.plan.files import check_belongs
from memfit.plan.find import find
from memfit.plan.largest import largest_batch
from memfit.plan.room import room

MICRO_BATCHES = "micro-batches"


def reviewed(plan: Plan, job: Job, *, want_largest_batch: bool = False) -> Plan:
    """The plan with its strategies as they stand in it now, and what is predicted of them and of plain for this job.

    `fits` is false where the prediction is above the plan's budget. Reasons, floor and frontier stay as they were, if
    the plain step is the one that the plan was made for.
    Raises UsageError for a plan of another model or version, or one whose strategies do not apply.
    """
    began = time.perf_counter()
    limits = room(plan.budget.host_bytes, plan.budget.disk_bytes)
    explorer = Explorer(job, plan.device, limits=limits)
    check_belongs(plan, model_hash(explorer.fake.model))
    plan = _without_splitting(plan, explorer.fake)
    choices = tuple(Choice(one.name, dict(one.settings)) for one in plan.strategies)
    seen = explorer.candidate(choices)
    if not isinstance(seen, Candidate):
        raise UsageError(f"the plan does not apply to this job: {seen}",
                         "correct it, or make a new one: memfit plan TARGET -o plan.toml")
    _check_effect(explorer, choices)
    plain, budget_bytes = explorer.plain.simulation, plan.budget.device_bytes
    largest = largest_batch(job, explorer.device, budget_bytes, [choices], limits) if want_largest_batch else plan.largest_batch
    same = plain.peak == plan.baseline.peak
    known = plan if same else _forgetting(plan, explorer)
    if same and seen.simulation.peak == plan.predicted.peak:  # nothing was edited that matters: its times stand
        planned_s, plain_s = plan.predicted.step_s, plan.baseline.step_s
    else:
        planned_s, plain_s = seen.simulation.step_s, plain.step_s
    return replace(
        known, target=job.name or plan.target, fits=seen.simulation.peak.high_bytes <= budget_bytes,
        fidelity=plan_fidelity(explorer.fake, choices).value, strategies=_named(plan.strategies, explorer.fake),
        predicted=Predicted(seen.simulation.peak, planned_s), baseline=Predicted(plain.peak, plain_s),
        slowdown=planned_s / max(plain_s, 1e-12), largest_batch=largest,
        floor_bytes=min(known.floor_bytes, seen.simulation.peak.high_bytes), took_s=time.perf_counter() - began,
        model_hash=model_hash(explorer.fake.model), timeline=seen.simulation.timeline,
        baseline_timeline=plain.timeline, source=plan_code(choices, explorer.fake))


def _check_effect(explorer: Explorer, choices: Sequence[Choice]) -> None:
    """Raise UsageError for a strategy that would do nothing for this job: a new plan would not have it either."""
    for one in choices:
        acting = strategy(one.name)
        wrong = acting.excluded(explorer.fake, explorer.device)
        if wrong is None and isinstance(acting, ActsOnTrace):
            below = explorer.candidate([other for other in choices if other is not one])
            wrong = acting.absent(one.settings, below.trace) if isinstance(below, Candidate) else None
        if wrong:
            raise UsageError(f"the plan does not apply to this job: {one.name}: {wrong}",
                             "correct it, or make a new one: memfit plan TARGET -o plan.toml")


def _without_splitting(plan: Plan, fake: Job) -> Plan:
    """A batch that cannot be split is no error: micro-batches are left out, which is noted."""
    reason = batches.why_unsplittable(fake.batch)
    kept = tuple(one for one in plan.strategies if one.name != MICRO_BATCHES)
    if reason is None or len(kept) == len(plan.strategies):
        return plan
    note = f"{MICRO_BATCHES} left out: the batch cannot be split: {reason}"
    return replace(plan, strategies=kept, notes=(*plan.notes, note))


def _forgetting(plan: Plan, explorer: Explorer) -> Plan:
    """The plan without what it says of a step that was another one (another batch size, say); its floor is sought anew."""
    floor_bytes = find(explorer, Fidelity.parse(plan.fidelity), {}, plan.budget.device_bytes).floor_bytes
    note = "made for other settings than these: only its strategies were looked at, so the frontier is not known"
    return replace(plan, floor_bytes=floor_bytes, rejected=(), frontier=(), notes=(*plan.notes, note))


def _named(planned: Sequence[PlannedStrategy], fake: Job) -> tuple[PlannedStrategy, ...]:
    """With each one's fidelity for this job, whatever the file says."""
    return tuple(replace(one, fidelity=strategies()[one.name].fidelity(fake, one.settings).value) for one in planned)
