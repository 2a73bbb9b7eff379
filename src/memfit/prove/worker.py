"""`python -m memfit.prove.worker SPEC.json`: one side of a proof, in a process of its own.

The spec: `subject` (`{target, settings}` or `{job_file, modules}`), `choices`, `seed`, `budget_bytes`, `enforce`,
`steps`, `plan` (the choices of the planned side, on every side: they say what is compared), and for a side that is
compared `folder`, `timed_steps`, `turn` (a pipe). Without a `folder` the side only has to survive its steps.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from memfit.apply import plan_fidelity
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.jobs.dropout import dropout_off, has_dropout
from memfit.jobs.randomness import random_state_kept, seed_everything
from memfit.jobs.targets import call_target
from memfit.launch import emit, worker_main
from memfit.monitor.measure import measure_step
from memfit.prove.recording import FIRST_BUFFERS, Gradients, write_buffers, write_final
from memfit.prove.ship import import_modules, unship
from memfit.prove.turns import Turn
from memfit.recipes import prepare
from memfit.train.enclosure import Enclosure, enclosed
from memfit.train.failures import told_to_user
from memfit.train.feed import Feed
from memfit.train.session import Session

_TIMED_ALONE_S = 20.0  # a side that is timed alone stops after this many seconds, with three steps at least


def work(spec: dict[str, Any]) -> Mapping[str, Any]:
    """Run the side; the payload of the `result` event."""
    make = _maker(spec["subject"])
    choices = [Choice(one["name"], one.get("settings") or {}) for one in spec.get("choices") or ()]
    with enclosed(spec.get("budget_bytes"), enforce=bool(spec.get("enforce")), choices=choices) as enclosure:
        emit("warm", pid=os.getpid(), limit_bytes=enclosure.limit_bytes)
        seed_everything(spec["seed"])
        with told_to_user(spec["subject"].get("target") or "the job"):
            job = make()
            _ = job.model, job.optimizer, job.scheduler
        seed_everything(spec["seed"])
        promised = [Choice(one["name"], one.get("settings") or {}) for one in spec["plan"]]
        fidelity = Fidelity.parse(spec["fidelity"]) if spec.get("fidelity") else plan_fidelity(job, promised)
        with Session(job, choices, profile_peaks=False) as session, enclosure.sparing_code(job.model):
            if not spec.get("folder"):
                for _ in range(spec["steps"]):
                    session.step()
                return _survived(session, enclosure)
            return _compared(spec, session, fidelity, enclosure)


def _maker(subject: Mapping[str, Any]) -> Callable[[], Job]:
    """What makes the job, with everything imported that it needs."""
    if "job_file" in subject:
        import_modules(subject["modules"])
        return lambda: unship(subject["job_file"])
    function = prepare(subject["target"])
    return lambda: call_target(function, subject.get("settings") or {}, subject["target"])


def _survived(session: Session, enclosure: Enclosure) -> dict[str, Any]:
    return {"steps": session.steps, "growth_bytes": enclosure.growth_bytes, "enforced": enclosure.enforced,
            "notes": session.notes}


def _compared(spec: Mapping[str, Any], session: Session, fidelity: Fidelity, enclosure: Enclosure) -> dict[str, Any]:
    """The steps that are compared, then timed ones (with dropout as the job has it); then, outside the limit that the
    profiler would take its memory of, a measured one."""
    job, folder = session.job, Path(spec["folder"])
    silent = fidelity is Fidelity.RESAMPLED or (fidelity.rank > Fidelity.RESAMPLED.rank and has_dropout(job.model))
    with dropout_off(job.model) if silent else nullcontext():
        losses = _losses(session, folder, spec["steps"], spec["seed"])
    write_final(folder, job, states=fidelity is Fidelity.BITWISE)
    emit("compared", losses=losses)
    times = _timed(session, spec["timed_steps"], spec.get("turn"))
    survived = _survived(session, enclosure)
    enclosure.end()
    peak_bytes = measure_step(job, session.step)
    emit("measured", peak_bytes=peak_bytes)
    return {**survived, "losses": losses, "peak_bytes": peak_bytes, "step_times_s": times, "fidelity": fidelity.value,
            "dropout_off": silent}


def _losses(session: Session, folder: Path, steps: int, seed: int) -> list[float]:
    """Train `steps` steps from the common start, leaving the first one's gradients and buffers in the folder."""
    losses: list[float] = []
    for number, batch in enumerate(_batches(session.job, steps, seed)):
        if number == 0:
            with Gradients(folder, session.job) as gradients:
                out = session.step(batch, on_gradients=gradients.all)
            write_buffers(folder, FIRST_BUFFERS, session.job)
        else:
            out = session.step(batch)
        losses.append(out.loss)
        emit("step", step=number + 1, steps=steps, loss=losses[-1])
        del batch
    return losses


def _batches(job: Job, steps: int, seed: int) -> Iterator[Any]:
    """The same batches on both sides, whatever each draws in between: every draw of data starts from its own seed."""
    feed, epoch = Feed(job), 0
    source = feed.epoch(epoch)
    for number in range(steps):
        with random_state_kept():
            seed_everything(seed + 1 + number)
            batch = next(source, None)
            if batch is None:
                epoch += 1
                source = feed.epoch(epoch)
                batch = next(source)
        yield batch
        del batch


def _timed(session: Session, count: int, turn: str | None) -> list[float]:
    """Seconds of single steps: in turns with the other side, or alone."""
    session.step()  # with dropout on again, warm
    times: list[float] = []
    if turn is not None:
        emit("at_line")
        turns = Turn(turn)
        while turns.next():
            times.append(_seconds(session))
            emit("timed", step_s=times[-1])
        return times
    began = time.perf_counter()
    while len(times) < count and (len(times) < 3 or time.perf_counter() - began < _TIMED_ALONE_S):
        times.append(_seconds(session))
    return times


def _seconds(session: Session) -> float:
    began = time.perf_counter()
    session.step()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(worker_main(work))
