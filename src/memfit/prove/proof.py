"""Plain against planned: three fresh processes, one verdict.

    planned           under the limit: its steps are compared, its peak measured, its speed timed
    plain             without a limit: the reference
    plain, limited    under the same limit: does it survive two steps? (with exact allocation, so that it is the tensors
                      it dies of)
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memfit.core.errors import MemfitError, NotSameResult, OverBudget, RanOutOfMemory
from memfit.core.fidelity import Fidelity
from memfit.core.results import Plan, Side, Verdict
from memfit.hardware.host import free_host_bytes
from memfit.jobs import Job
from memfit.launch import EXACT_NOTE, WorkerResult, allowance, can_enforce, process_memory
from memfit.prove.compare import Comparison, compare
from memfit.prove.ship import ship
from memfit.prove.sides import OnEvent, run_side, run_together
from memfit.prove.turns import can_take_turns

PLAIN, PLANNED, LIMITED = "plain", "planned", "plain, limited"
_TIMED_ALONE = 5
_NOTEWORTHY_DRIFT = 1e-3
_SURVIVAL_STEPS = 2  # the second one has the optimizer's state


def prove_target(
    target: str, settings: Mapping[str, Any], plan: Plan, *, steps: int = 5, enforce: bool = True, seed: int = 0,
    on_event: OnEvent = lambda side, event: None,
) -> Verdict:
    """Prove a plan on a TARGET, which each process calls anew under one seed.

    Raises UsageError where the target or its job is at fault, and MemfitError if a side fails in another way. A
    planned side that dies under the limit is no error but the verdict: see `error_of`.
    """
    with tempfile.TemporaryDirectory(prefix="memfit-proof-") as folder:
        subject = {"target": target, "settings": dict(settings)}
        return _Proof(subject, plan, steps, enforce, seed, Path(folder), on_event).verdict()


def prove_job(
    job: Job, plan: Plan, *, steps: int = 5, enforce: bool = True, seed: int = 0,
    on_event: OnEvent = lambda side, event: None,
) -> Verdict:
    """Prove a plan on a live job, which is pickled and sent. Raises UsageError, asking for a target, if that fails."""
    with tempfile.TemporaryDirectory(prefix="memfit-proof-") as folder:
        return _Proof(ship(job, Path(folder)), plan, steps, enforce, seed, Path(folder), on_event).verdict()


def error_of(verdict: Verdict) -> MemfitError | None:
    """What went wrong, with its exit code: died under the limit (4), not the same result (5), over budget (6)."""
    reasons = "; ".join(verdict.notes[:2])
    if verdict.planned.survives_budget is False:
        return RanOutOfMemory("the planned run died under the limit",
                              "plan with a smaller budget than the one that you enforce")
    if not verdict.same_result and verdict.fidelity != Fidelity.ADAPTED.value:
        return NotSameResult(f"the planned run is not {verdict.fidelity}: {reasons}",
                             "allow a lower --fidelity if that is acceptable")
    if not verdict.within_budget:
        return OverBudget(f"the planned run is alive but over its budget of {verdict.budget_bytes} bytes: "
                          f"{verdict.planned.peak_bytes} of tensors, {verdict.rss_growth_bytes} resident",
                          "plan with a smaller budget")
    return None


class _Proof:
    def __init__(self, subject: dict[str, Any], plan: Plan, steps: int, enforce: bool, seed: int, folder: Path,
                 on_event: OnEvent) -> None:
        self._plan, self._folder, self._on_event = plan, folder, on_event
        self._enforce = enforce and can_enforce()
        self._in_turns = self._exact = False
        self._budget_bytes = plan.budget.device_bytes
        self._choices = [{"name": one.name, "settings": dict(one.settings)} for one in plan.strategies]
        self._spec = {"subject": subject, "seed": seed, "steps": max(1, steps), "timed_steps": _TIMED_ALONE,
                      "budget_bytes": self._budget_bytes, "plan": self._choices, "fidelity": plan.fidelity}

    def verdict(self) -> Verdict:
        survives = self._plain_survives() if self._enforce else None
        planned, plain = self._compared(exact=False)
        if planned.out_of_memory:
            planned, plain = self._compared(exact=True)
        died = planned.out_of_memory
        if died:
            planned = self._planned_without_limit()
        ours, theirs = _payload(planned), _payload(plain)
        fidelity = Fidelity.parse(ours["fidelity"])
        seen = compare(self._folder / PLAIN, self._folder / PLANNED, theirs["losses"], ours["losses"], fidelity)
        return self._judged(ours, theirs, seen, fidelity, None if not self._enforce else not died, survives)

    def _judged(
        self, ours: dict[str, Any], theirs: dict[str, Any], seen: Comparison, fidelity: Fidelity, alive: bool | None,
        plain_survives: bool | None,
    ) -> Verdict:
        growth = ours["growth_bytes"] if process_memory() is not None else None
        within = ours["peak_bytes"] <= self._budget_bytes and alive is not False
        if growth is not None:
            within = within and growth <= allowance(self._budget_bytes)
        plain_s, planned_s = (statistics.median(side["step_times_s"] or [0.0]) for side in (theirs, ours))
        return Verdict(
            within_budget=within, same_result=seen.same_result, fidelity=fidelity.value,
            max_rel_loss_diff=seen.max_rel_loss_diff, max_rel_param_diff=seen.max_rel_param_diff,
            buffers_equal=seen.buffers_equal, grad_set_equal=seen.grad_set_equal, enforced=self._enforce,
            plain=Side(theirs["peak_bytes"], plain_s, plain_survives),
            planned=Side(ours["peak_bytes"], planned_s, alive),
            budget_bytes=self._budget_bytes, max_rel_grad_diff=seen.max_rel_grad_diff,
            slowdown=_slowdown(theirs["step_times_s"], ours["step_times_s"], self._in_turns), rss_growth_bytes=growth,
            notes=(*seen.differences, *self._notes(ours, fidelity), *_drift(seen)))

    def _notes(self, ours: dict[str, Any], fidelity: Fidelity) -> list[str]:
        notes = list(ours["notes"])
        if ours["dropout_off"]:
            notes.append("results were compared with dropout off: the planned run draws other random numbers")
        if fidelity is Fidelity.ADAPTED:
            notes.append("the plan trains another model or objective: the difference is reported, not judged")
        if self._exact:
            notes.append(EXACT_NOTE)
        if not self._enforce:
            notes.append("no limit was enforced")
        return notes

    def _plain_survives(self) -> bool:
        """Whether plain lives under the limit. Raises its error if it ends for another reason than memory."""
        spec = {**self._spec, "steps": _SURVIVAL_STEPS, "enforce": True, "exact": True}
        result = run_side(LIMITED, spec, self._on_event)
        if result.out_of_memory:
            return False
        if result.error is not None:
            raise result.error
        return True

    def _compared(self, *, exact: bool) -> tuple[WorkerResult, WorkerResult]:
        """Both sides, at the same time if the machine holds both, so that speed is measured side by side.

        The fast allocator can need more than the limit leaves; then the planned side is tried with the exact one.
        """
        self._exact = exact
        planned_side = {**self._side(PLANNED, enforce=self._enforce), "exact": exact}
        sides = {PLANNED: planned_side, PLAIN: self._side(PLAIN, enforce=False)}
        needed = self._plan.baseline.peak.high_bytes + self._budget_bytes
        self._in_turns = can_take_turns() and needed < 0.7 * free_host_bytes()
        if self._in_turns:
            results = run_together(sides, self._folder, self._on_event)
            planned, plain = results[PLANNED], results[PLAIN]
        else:
            planned, plain = (run_side(name, spec, self._on_event) for name, spec in sides.items())
        for result in (plain, planned):
            if result.error is not None and not (result is planned and self._enforce and result.out_of_memory):
                raise result.error
        return planned, plain

    def _side(self, name: str, *, enforce: bool) -> dict[str, Any]:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        choices: Sequence[Mapping[str, Any]] = self._choices if name == PLANNED else ()
        return {**self._spec, "choices": list(choices), "enforce": enforce, "folder": str(folder)}

    def _planned_without_limit(self) -> WorkerResult:
        """It died; what it would have given is still worth telling."""
        self._in_turns = False
        result = run_side(f"{PLANNED}, without the limit", self._side(PLANNED, enforce=False), self._on_event)
        if result.error is not None:
            raise result.error
        return result


def _drift(seen: Comparison) -> list[str]:
    """A number that would alarm without its reason."""
    if not seen.same_result or seen.max_rel_param_diff < _NOTEWORTHY_DRIFT:
        return []
    note = (f"{seen.most_drifted} drifted most after the first step, by {seen.max_rel_param_diff:.2g}: rounding, which "
            "an optimizer that normalises gradients enlarges where they are next to nothing (reported, not judged)")
    return [note]


def _payload(result: WorkerResult) -> dict[str, Any]:
    if result.result is None:
        raise MemfitError(f"a side of the proof ended without a result: {result.stderr_tail.strip()[-300:]}")
    return result.result


def _slowdown(plain: Sequence[float], planned: Sequence[float], in_turns: bool) -> float:
    """The ratio of the medians; the median of the pairs' ratios where each pair met the same machine."""
    if not plain or not planned:
        return 0.0
    if in_turns:
        return statistics.median(ours / theirs for theirs, ours in zip(plain, planned))
    return statistics.median(planned) / statistics.median(plain)
