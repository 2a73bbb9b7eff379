"""Whether micro-batches keep a job's loss, asked before planning: the probe runs in a forked child, so that nothing of
it stays in the user's process."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable

import torch
from torch import nn

from memfit.core.errors import MemfitError
from memfit.jobs import Job, batches
from memfit.jobs.weight_probe import Weight, name_of, probe_weight, weights_of
from memfit.launch import lift_data_limit

MICRO_BATCHES = "micro-batches"
_LATER = f"{MICRO_BATCHES} check it before the first step"
_TIMEOUT_S = 60.0
_PASSES = "passes"


def barred_strategies(job: Job) -> tuple[dict[str, str], tuple[str, ...]]:
    """Strategies that the job's loss excludes, with the reason, and notes for the plan."""
    if batches.why_unsplittable(job.batch) is not None:
        return {}, ()  # the strategy itself says so
    if not isinstance(job.model_source, nn.Module):
        return {}, (f"weight not checked: the model has no weights yet; {_LATER}",)
    if not hasattr(os, "fork"):
        return {}, (f"weight not checked: this system has no fork; {_LATER}",)
    reason = in_child(lambda: probe_weight(job).reason)
    if reason is None:
        return {}, ("weight not checked: the probe gave no answer",)
    return ({MICRO_BATCHES: reason}, ()) if reason else ({}, ())


def probed_in_child(job: Job) -> tuple[Weight | None, str]:
    """The weight that passes, or why none does, seen by a child that no limit holds."""
    if not hasattr(os, "fork"):
        return None, "its weight cannot be checked in the memory that there is"
    told = in_child(lambda: _told(job))
    kind, _, text = (told or "").partition(":")
    if kind != _PASSES:
        return None, text or "the check of its weight gave no answer"
    return next(one for one in weights_of(job) if name_of(one) == text), ""


def _told(job: Job) -> str:
    lift_data_limit()
    finding = probe_weight(job)
    return f"{_PASSES}:{finding.name}" if finding.weight is not None else f"none:{finding.reason}"


def in_child(ask: Callable[[], str]) -> str | None:
    """What `ask` gives in a forked child; None if the child dies or takes more than a minute."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(ask, writing)
    os.close(writing)
    try:
        return _hear(reading)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _answer(ask: Callable[[], str], writing: int) -> None:
    """In the child: one thread only (the parent's thread pool did not survive the fork), no clean-up of its own, and
    silent: what the job prints, it will print again when it trains."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        torch.set_num_threads(1)
        try:
            text = ask()
        except MemfitError as error:
            text = error.message
        os.write(writing, json.dumps(text).encode() + b"\n")
    finally:
        os._exit(0)


def _hear(reading: int) -> str | None:
    heard = b""
    while not heard.endswith(b"\n"):
        ready, _, _ = select.select([reading], [], [], _TIMEOUT_S)
        more = os.read(reading, 1 << 16) if ready else b""
        if not more:
            return None
        heard += more
    return json.loads(heard)
