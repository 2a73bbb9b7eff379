"""Steps and epochs over the job's data: log, checkpoints, evaluation between epochs, and a clean end on Ctrl-C."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memfit.core.errors import Interrupted, UsageError
from memfit.jobs.batches import size
from memfit.jobs.randomness import RawState, random_state, raw_state, set_random_state, set_raw_state
from memfit.train.checkpoints import Place, find_checkpoint, load_checkpoint, save_checkpoint
from memfit.train.failures import NotFinite
from memfit.train.feed import Feed
from memfit.train.interrupt import InterruptFlag
from memfit.train.log import RunLog
from memfit.train.session import Session, StepOutput

Report = Callable[..., object]

_WITHOUT_DATA = 10


@dataclass(frozen=True)
class LoopSettings:
    """How far to train and what to keep. With neither `steps` nor `epochs` it is one epoch (10 steps without data).

    `steps` counts from the start of the run, resumed or not. A checkpoint is written each `save_every` steps (if
    given), after each epoch, after `save_every_s` seconds since the last, at the end, and on Ctrl-C.
    """

    steps: int | None = None
    epochs: int | None = None
    out: Path | None = None
    resume: Path | None = None
    save_every: int | None = None
    save_every_s: float = 600.0


@dataclass
class Outcome:
    """What a run came to. `losses` and times are those of this process, not of what it resumed; the profiler's price
    is in `profiled_times_s`."""

    place: Place = field(default_factory=Place)
    losses: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    profiled_times_s: list[float] = field(default_factory=list)
    samples: int = 0
    evaluation: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def train(session: Session, settings: LoopSettings, report: Report = lambda kind, **payload: None) -> Outcome:
    """Run the loop. `report(kind, ...)` is told `resumed`, `step`, `epoch` and at the end `evaluation`
    (with what `evaluate` gave), and `saved`.

    Raises UsageError for settings that do not go together and for a loss that is not finite (the state before that
    step is saved), Interrupted after Ctrl-C (saved as well), RanOutOfMemory.
    """
    check_settings(session, settings)
    return _Loop(session, settings, report).run()


def check_settings(session: Session, settings: LoopSettings) -> None:
    """Raise UsageError for epochs without data, and for counts that are not positive."""
    if settings.epochs is not None and session.job.data is None:
        raise UsageError("--epochs needs data, and the job has none: each step repeats its batch",
                         "give --steps, or Job(data=...)")
    for name, count in (("--steps", settings.steps), ("--epochs", settings.epochs)):
        if count is not None and count < 1:
            raise UsageError(f"{name} is {count}", "give a positive number")


class _Loop:
    def __init__(self, session: Session, settings: LoopSettings, report: Report) -> None:
        self._session, self._settings, self._report = session, settings, report
        self._feed = Feed(session.job)
        self._log = RunLog(settings.out)
        self._outcome = Outcome()
        self._place = Place()
        self._epoch_state: dict[str, Any] | None = None
        self._before_batch: RawState | None = None
        self._saved_step = self._evaluated_step = -1
        self._saved_at = time.monotonic()
        default = None if self._feed.has_epochs else _WITHOUT_DATA
        self._steps = settings.steps if settings.steps or settings.epochs else default
        self._epochs = settings.epochs if settings.steps or settings.epochs else 1

    def run(self) -> Outcome:
        with self._log, InterruptFlag() as interrupt:
            self._start()
            try:
                for batch in self._batches():
                    self._step(batch)
                    del batch
                    if interrupt.set:
                        raise self._interrupted()
            except NotFinite as error:
                raise self._not_finite(error) from None
            self._save()
            self._evaluate_at_end()
        self._outcome.place = self._place
        self._outcome.notes += self._session.notes
        return self._outcome

    def _start(self) -> None:
        if self._settings.resume is None:
            self._log.begin(0)
            return
        found = find_checkpoint(self._settings.resume)
        self._place, self._epoch_state, notes = load_checkpoint(found, self._session.job, self._session.choices)
        self._session.steps = self._place.step
        self._saved_step = self._place.step
        self._outcome.notes += notes
        if self._done():
            self._outcome.notes.append(f"nothing was left to train: the run is at step {self._place.step}, and --steps and "
                                       "--epochs count from its start")
        self._log.begin(self._place.step)
        self._report("resumed", path=str(found), step=self._place.step, epoch=self._place.epoch)

    def _batches(self) -> Iterator[Any]:
        """Batches until the run is as long as asked; epochs end, and are evaluated and saved, in between."""
        while not self._done():
            for batch in self._epoch():
                yield batch
                del batch
                if self._done():
                    break
            else:
                self._end_epoch()

    def _epoch(self) -> Iterator[Any]:
        """The rest of the current epoch: drawn again as it was, then the generators are as they were when saved."""
        skip, now = self._place.position, random_state()
        if skip and self._epoch_state is not None:
            set_random_state(self._epoch_state)
        else:
            self._epoch_state = now
        return self._feed.epoch(self._place.epoch, skip, lambda: set_random_state(now) if skip else None)

    def _done(self) -> bool:
        if self._steps is not None and self._place.step >= self._steps:
            return True
        return self._steps is None and self._epochs is not None and self._place.epoch >= self._epochs

    def _step(self, batch: Any) -> None:
        out = self._session.step(batch)
        self._place = Place(self._place.step + 1, self._place.epoch, self._place.position + 1)
        outcome = self._outcome
        if not math.isnan(out.loss):  # as it is where no label counts
            outcome.losses.append(out.loss)
        (outcome.profiled_times_s if out.profiled else outcome.step_times_s).append(out.step_s)
        outcome.samples = size(batch)
        entry = self._entry(out)
        self._before_batch = raw_state()
        self._log.write(**entry)
        self._report("step", steps=self._steps, **entry)
        if self._due():
            self._save()

    def _entry(self, out: StepOutput) -> dict[str, Any]:
        groups = self._session.job.optimizer.param_groups
        loss = None if math.isnan(out.loss) else out.loss
        return {"step": self._place.step, "epoch": self._place.epoch, "loss": loss, "skipped": out.skipped,
                "peak_bytes": out.peak_bytes, "step_s": out.step_s, "profiled": out.profiled,
                "lr": float(groups[0]["lr"]), "grad_norm": out.grad_norm, "left_out": out.left_out}

    def _end_epoch(self) -> None:
        self._place = Place(self._place.step, self._place.epoch + 1, 0)
        self._epoch_state = None
        self._evaluate("epoch")
        self._save(again=True)

    def _evaluate_at_end(self) -> None:
        if self._session.job.evaluate is not None and self._evaluated_step != self._place.step:
            self._evaluate("evaluation")

    def _evaluate(self, kind: str) -> None:
        evaluation = self._session.evaluate()
        self._outcome.evaluation = evaluation
        self._evaluated_step = self._place.step
        self._log.write(epoch=self._place.epoch, step=self._place.step, evaluation=evaluation)
        self._report(kind, epoch=self._place.epoch, step=self._place.step, evaluation=evaluation)

    def _due(self) -> bool:
        every = self._settings.save_every
        by_steps = every is not None and self._place.step % every == 0
        return by_steps or time.monotonic() - self._saved_at > self._settings.save_every_s

    def _save(self, *, again: bool = False) -> Path | None:
        """Write a checkpoint, unless there is one of this step or nowhere to put it."""
        if self._settings.out is None or (self._saved_step == self._place.step and not again):
            return None
        session = self._session
        path = save_checkpoint(self._settings.out, session.job, self._place, session.choices, self._epoch_state)
        self._saved_step, self._saved_at = self._place.step, time.monotonic()
        self._report("saved", path=str(path), step=self._place.step)
        return path

    def _interrupted(self) -> Interrupted:
        self._save()
        step, out = self._place.step, self._settings.out
        if out is None:
            return Interrupted(f"interrupted after step {step}", "give --out DIR to keep checkpoints")
        return Interrupted(f"interrupted after step {step}; step {step} is saved in {out}",
                           f"go on with --resume {out}")

    def _not_finite(self, error: NotFinite) -> NotFinite:
        """The state before the step is whole, and worth keeping; its batch will be drawn again."""
        if self._before_batch is not None:
            set_raw_state(self._before_batch)
        self._save()
        if self._settings.out is None:
            return error
        return NotFinite(f"{error.message}; step {self._place.step} is kept in {self._settings.out}", error.advice)
