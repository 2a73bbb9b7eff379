"""`python -m memfit.train.worker SPEC.json`: the process that trains, under the limit if one shall be enforced.

The spec: `target`, `settings`, `seed`, `choices` (`[{name, settings}]`), `budget_bytes`, `enforce`,
`predicted_peak_bytes`, `plan` (for the result), `steps`, `epochs`, `out`, `resume`, `save_every`, `exact` (allocation
is exact; only noted); all but `target` may be left out. Events: `warm`, `ready`, what the loop reports, and at the end
`result` (a `memfit.run/1`) or `error`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memfit.core.results import Run
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.jobs.randomness import seed_everything
from memfit.jobs.targets import call_target
from memfit.launch import EXACT_NOTE, emit, worker_main
from memfit.monitor.measure import measure_step
from memfit.recipes import prepare
from memfit.train.checkpoints import find_checkpoint, run_of
from memfit.train.enclosure import Enclosure, enclosed
from memfit.train.failures import told_to_user
from memfit.train.loop import LoopSettings, Outcome, train
from memfit.train.session import Session


def work(spec: dict[str, Any]) -> Mapping[str, Any]:
    """Train as the spec says; the payload of the `result` event."""
    function = prepare(spec["target"])
    budget_bytes = spec.get("budget_bytes")
    seed = int(spec.get("seed", 0))
    settings = _loop_settings(spec)
    choices = [Choice(one["name"], one.get("settings") or {}) for one in spec.get("choices") or ()]
    with enclosed(budget_bytes, enforce=bool(spec.get("enforce")), choices=choices) as enclosure:
        emit("warm", limit_bytes=enclosure.limit_bytes)
        seed_everything(seed)
        with told_to_user(spec["target"]):
            job = call_target(function, spec.get("settings") or {}, spec["target"])
            make(job)
        seed_everything(seed)
        with Session(job, choices, profile_peaks=not enclosure.enforced) as session, enclosure.sparing_code(job.model):
            emit("ready", parameters=sum(p.numel() for p in job.model.parameters()))

            def report(kind: str, **told: Any) -> None:
                emit(kind, **told, growth_bytes=enclosure.growth_bytes)

            outcome = train(session, settings, report)
            enclosure.end()
            run = _run(spec, session, outcome, enclosure)
    return {"run": run.to_dict()}


def make(job: Job) -> None:
    """Make the live model, optimizer and scheduler, where the job holds functions that make them."""
    _ = job.model, job.optimizer, job.scheduler


def _loop_settings(spec: Mapping[str, Any]) -> LoopSettings:
    resume = find_checkpoint(Path(spec["resume"])) if spec.get("resume") else None
    out = Path(spec["out"]) if spec.get("out") else run_of(resume) if resume else None  # it goes on where it was
    return LoopSettings(spec.get("steps"), spec.get("epochs"), out, resume, spec.get("save_every"))


def _run(spec: Mapping[str, Any], session: Session, outcome: Outcome, enclosure: Enclosure) -> Run:
    budget_bytes = spec.get("budget_bytes")
    peak_bytes = session.peak_bytes or _measured(session)
    times = outcome.step_times_s or outcome.profiled_times_s
    median_s = statistics.median(times) if times else 0.0
    return Run(
        steps=outcome.place.step, loss_first=outcome.losses[0] if outcome.losses else float("nan"),
        loss_last=outcome.losses[-1] if outcome.losses else float("nan"), peak_bytes=peak_bytes,
        rss_peak_bytes=enclosure.growth_bytes, predicted_peak_bytes=int(spec.get("predicted_peak_bytes") or 0),
        budget_bytes=budget_bytes, within_budget=enclosure.within(budget_bytes, peak_bytes),
        enforced=enclosure.enforced, oom_recovered=0, step_s_median=median_s,
        samples_per_s=outcome.samples / median_s if median_s else 0.0, plan=spec.get("plan") or {},
        evaluation=outcome.evaluation, notes=(*outcome.notes, *([EXACT_NOTE] if spec.get("exact") else [])))


def _measured(session: Session) -> int:
    """The peak of one more step, after all is saved: under a limit the profiler would take of the run's own memory."""
    return measure_step(session.job, session.step)


if __name__ == "__main__":
    sys.exit(worker_main(work))
