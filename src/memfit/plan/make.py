"""From a job and a budget to a plan; from a job to an estimate."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import memfit
from memfit.apply import plan_code, plan_fidelity, strategies
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.results import (
    Budget,
    Estimate,
    Plan,
    PlannedStrategy,
    Predicted,
    Rejected,
)
from memfit.core.strategy import Choice
from memfit.core.trace import Trace
from memfit.core.units import parse_size
from memfit.jobs import Job
from memfit.jobs.identity import model_hash
from memfit.plan.dominant import dominant
from memfit.plan.explore import Candidate, Explorer
from memfit.plan.find import Found, find
from memfit.plan.free import free_bytes
from memfit.plan.frontier import frontier
from memfit.plan.gradients import release_note
from memfit.plan.largest import largest_batch
from memfit.plan.reasons import left_out, why
from memfit.plan.room import away_notes, room
from memfit.simulate import Simulation, simulate

OnSteps = Callable[[Sequence[Trace], Device], None]


def estimate_job(job: Job, *, device: str | Device | None = None, choices: Sequence[Choice] = (), target: str = "",
                 torch_version: str = "", on_steps: OnSteps | None = None) -> Estimate:
    """What a training step needs on a device; nothing runs. `torch_version` is the one whose CUDA kernels and libraries are
    meant, where that is not the one here; `on_steps` sees the traces that were simulated. Raises Untraceable if the step
    cannot be traced."""
    began = time.perf_counter()
    explorer = Explorer(job, device, torch_version)
    where = explorer.device
    candidate = explorer.candidate(choices)
    if isinstance(candidate, str):
        raise UsageError(f"the plan does not apply to this job: {candidate}", "make a new plan for it")
    if on_steps is not None:
        on_steps([candidate.trace] if choices else [explorer.first, candidate.trace], where)
    first = _first_peak(explorer, candidate)
    return estimate_of(candidate.trace, candidate.simulation, first, where, target or job.name, began)


def estimate_of(trace: Trace, seen: Simulation, first_peak_bytes: int, where: Device, target: str, began: float) -> Estimate:
    """A simulation as an estimate; `began` is when its making did, by `time.perf_counter`."""
    return Estimate(
        target=target, device=where.name, peak=seen.peak, first_step_peak_bytes=first_peak_bytes, at_peak=seen.at_peak,
        largest=seen.largest, step_s=seen.step_s, took_s=time.perf_counter() - began, notes=(*trace.notes, *seen.notes),
        timeline=seen.timeline, fits=seen.fits, capacity_bytes=where.capacity_bytes if where.kind == "cuda" else None)


def _first_peak(explorer: Explorer, candidate: Candidate) -> int:
    if candidate.simulation.first_step_peak_bytes is not None:
        return candidate.simulation.first_step_peak_bytes
    first = simulate(explorer.first, explorer.device) if not candidate.choices else candidate.simulation
    return first.peak.allocated_bytes


def make_plan(
    job: Job,
    *,
    budget: str | int | None = None,
    device: str | Device | None = None,
    host_budget: str | int | None = None,
    disk_budget: str | int | None = None,
    fidelity: str | Fidelity = Fidelity.RESAMPLED,
    target: str = "",
    want_largest_batch: bool = False,
    barred: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> Plan:
    """The fastest plan within the budget and the fidelity; `fits` is false where there is none, with the floor.

    `host_budget` and `disk_budget` bound what is moved there (default: no limit, and what the disk has free less a margin).
    `barred` names strategies that must stay out, with the reason. Raises UsageError for nonsense sizes, unknown
    devices or fidelities, and Untraceable if the step cannot be traced.
    """
    began = time.perf_counter()
    allowed = Fidelity.parse(fidelity)
    if budget is not None:
        parse_size(budget, whole_bytes=1 << 40)  # a bad size is told before the work, not after
    host_bytes = parse_size(host_budget) if host_budget is not None else None
    disk_bytes = parse_size(disk_budget) if disk_budget is not None else None
    limits = room(host_bytes, disk_bytes)
    explorer = Explorer(job, device, limits=limits)
    where = explorer.device
    budget_bytes, budget_note = _budget(budget, explorer, where)
    found = find(explorer, allowed, dict(barred or {}), budget_bytes)
    chosen, step_s = found.chosen, found.step_s
    plain = explorer.plain.simulation
    largest = None
    if want_largest_batch:
        largest = largest_batch(job, where, budget_bytes, [chosen.choices, found.floor.choices], limits)
    return Plan(
        target=target or job.name, device=where.name, budget=Budget(budget_bytes, host_bytes, disk_bytes), fits=found.fits,
        fidelity=plan_fidelity(explorer.fake, chosen.choices).value, strategies=_planned(explorer, chosen, budget_bytes),
        predicted=Predicted(chosen.simulation.peak, step_s),
        baseline=Predicted(plain.peak, plain.step_s), slowdown=step_s / max(plain.step_s, 1e-12),
        floor_bytes=found.floor_bytes, rejected=_rejected(found, budget_bytes),
        frontier=frontier(explorer, found), largest_batch=largest, took_s=time.perf_counter() - began,
        model_hash=model_hash(explorer.fake.model), memfit_version=memfit.__version__,
        notes=(dominant(explorer.plain), *notes, *budget_note, *found.notes, *chosen.trace.notes,
               *release_note(explorer, chosen), *away_notes(chosen.simulation.away)),
        timeline=chosen.simulation.timeline, baseline_timeline=plain.timeline, source=plan_code(chosen.choices, explorer.fake))


def _budget(budget: str | int | None, explorer: Explorer, device: Device) -> tuple[int, tuple[str, ...]]:
    if budget is None:
        free, source = free_bytes(device)
        return free, (f"no budget given: it is {source}" if device.kind != "cpu" else
                      f"no budget given: it is what is free now ({source})",)
    peak = explorer.plain.simulation.peak
    whole = peak.allocated_bytes if device.kind == "cpu" else peak.high_bytes
    return parse_size(budget, whole_bytes=whole), ()


def _planned(explorer: Explorer, chosen: Candidate, budget_bytes: int) -> tuple[PlannedStrategy, ...]:
    return tuple(
        PlannedStrategy(c.name, dict(c.settings), strategies()[c.name].fidelity(explorer.fake, c.settings).value,
                        why(explorer, chosen, c, budget_bytes))
        for c in chosen.choices)


def _rejected(found: Found, budget_bytes: int) -> tuple[Rejected, ...]:
    named = {choice.name for choice in found.chosen.choices} | {one.name for one in found.rejected}
    others = [name for name in sorted(strategies()) if name not in named]
    return (*found.rejected, *(Rejected(name, left_out(name, found.ranked, found.chosen, budget_bytes)) for name in others))
