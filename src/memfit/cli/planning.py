"""From the words of a command to a plan, for every command that needs one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memfit.cli.progress import say
from memfit.core.errors import UsageError

if TYPE_CHECKING:
    from memfit.core.results import Plan

DEFAULT_FIDELITY = "resampled"


@dataclass(frozen=True)
class Request:
    """What the user asked to be planned. `plan_file` stands instead of a budget; None is what was not given."""

    target: str
    settings: Mapping[str, Any]
    budget: str | None = None
    device: str | None = None
    host_budget: str | None = None
    fidelity: str | None = None
    plan_file: str | None = None
    runs: bool = False
    disk_budget: str | None = None


def request(
    target: str, settings: Sequence[str] | None, *, budget: str | None = None, device: str | None = None,
    host_budget: str | None = None, fidelity: str | None = None, plan_file: str | None = None,
    runs: bool = False, disk_budget: str | None = None,
) -> Request:
    """The request, checked as far as that needs neither the TARGET nor torch; `runs` says that the job is to run, which it
    does on this machine's CPU. Raises UsageError."""
    from memfit.core.fidelity import Fidelity
    from memfit.core.units import is_share, parse_size
    from memfit.hardware import find_device

    if plan_file is not None and budget is not None:
        raise UsageError("--plan and --budget were both given", "the plan has its own budget: leave one of them out")
    if fidelity is not None:
        Fidelity.parse(fidelity)
    if budget is not None:
        parse_size(budget, whole_bytes=1 << 40)
    for name, size in (("--host-budget", host_budget), ("--disk-budget", disk_budget)):
        if size is not None:
            if is_share(size):
                raise UsageError(f"{name} {size!r} is a share", "give a size in bytes, such as 8GiB")
            parse_size(size)
    if device is not None:
        found = find_device(device)
        if runs and found.kind != "cpu":
            raise _only_planned(found.name, target)
    from memfit.jobs.targets import parse_settings  # brings torch, which the checks above do not need

    return Request(target, parse_settings(settings or []), budget, device, host_budget, fidelity, plan_file, runs,
                   disk_budget)


def planned(asked: Request, *, largest_batch: bool = False, announced: bool = True) -> Plan:
    """The plan of a file, seen anew for this job, or the one made for the budget; it may say that nothing fits.
    `announced`: a terminal is told that it is being made.

    Raises UsageError for a TARGET, plan file or size that is no good, and Untraceable.
    """
    from memfit.plan import make_plan
    from memfit.recipes import load
    from memfit.train.probing import barred_strategies

    if announced:
        say(f"planning {asked.target}")
    job = load(asked.target, asked.settings)
    if asked.plan_file is not None:
        return _from_file(asked, job, largest_batch)
    barred, notes = barred_strategies(job)
    return make_plan(job, budget=asked.budget, device=asked.device, host_budget=asked.host_budget,
                     disk_budget=asked.disk_budget,
                     fidelity=asked.fidelity or DEFAULT_FIDELITY, target=asked.target, barred=barred, notes=notes,
                     want_largest_batch=largest_batch)


def require_fit(made: Plan) -> Plan:
    """The plan, or DoesNotFit with its floor."""
    if not made.fits:
        from memfit.plan.advice import does_not_fit

        raise does_not_fit(made)
    return made


def _only_planned(device: str, target: str) -> UsageError:
    return UsageError(f"{device} can be predicted and planned for, but nothing runs there: jobs run on this machine's cpu",
                      f"use --device cpu, or take the plan to that machine: memfit plan {target} --device {device} -o plan.py")


def _from_file(asked: Request, job: Any, largest_batch: bool) -> Plan:
    from memfit.core.fidelity import Fidelity
    from memfit.plan import read_plan
    from memfit.plan.review import reviewed

    assert asked.plan_file is not None
    from memfit.hardware import find_device

    read = read_plan(asked.plan_file)
    if asked.runs and find_device(read.device).kind != "cpu":
        raise _only_planned(read.device, asked.target)
    if asked.device not in (None, read.device):
        raise UsageError(f"the plan {asked.plan_file} is for {read.device}, not {asked.device}",
                         f"leave out --device, or plan for it: memfit plan {asked.target} --device {asked.device}")
    seen = reviewed(read, job, want_largest_batch=largest_batch)
    if asked.fidelity is not None and not Fidelity.parse(asked.fidelity).allows(Fidelity.parse(seen.fidelity)):
        raise UsageError(f"{asked.plan_file} gives {seen.fidelity} results, and --fidelity is {asked.fidelity}",
                         f"leave out --fidelity, or plan again: memfit plan {asked.target} --fidelity {asked.fidelity}")
    return seen
