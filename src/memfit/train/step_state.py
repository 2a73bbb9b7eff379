"""What a step changes before its update: buffers (running statistics, counters), random generators, and what strategies
keep from window to window. Kept when a step begins, put back when it fails, so that a failed step has not happened."""

from __future__ import annotations

from typing import Any

import torch

from memfit.jobs import Job
from memfit.jobs.randomness import RawState, raw_state, set_raw_state

_TABLE_BYTES = 4 * 2**20  # before the first step it is not known which buffers change; larger ones are tables
_COMPARED = 2  # steps after which a buffer that stayed as it was is not copied any longer


class StepState:
    """Copies of the buffers that change: at first of all but large ones, later of those that were seen to (usually
    some hundred KiB)."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._model = job.model
        self._changing = {name for name, buffer in self._model.named_buffers() if buffer.nbytes <= _TABLE_BYTES}
        self._compared = 0
        self._unchanged: dict[str, int] = {}
        self._versions: dict[str, int] = {}
        self._copies: dict[str, torch.Tensor] = {}
        self._random: RawState | None = None
        self._rules: dict[str, Any] = {}

    def keep(self) -> None:
        """A step begins."""
        buffers = dict(self._model.named_buffers())
        with torch.no_grad():
            self._copies = {name: buffers[name].clone() for name in self._changing if name in buffers}
        self._versions = {name: buffer._version for name, buffer in buffers.items()}
        self._random = raw_state()
        self._rules = self._job.rules.state()

    def done(self) -> None:
        """The step went well: what it changed, others will. (BatchNorm's kernels write to running statistics without
        counting a version, so in the first steps values are compared as well.)"""
        for name, buffer in self._model.named_buffers():
            if buffer._version != self._versions.get(name):
                self._changing.add(name)
            elif self._compared < _COMPARED and name in self._copies and _equal(buffer, self._copies[name]):
                self._unchanged[name] = self._unchanged.get(name, 0) + 1
        self._compared += 1
        if self._compared == _COMPARED:
            self._changing -= {name for name, times in self._unchanged.items() if times == _COMPARED}

    def put_back(self) -> None:
        """The step failed: buffers and generators are as they were when it began."""
        buffers = dict(self._model.named_buffers())
        with torch.no_grad():
            for name, value in self._copies.items():
                if name in buffers:
                    buffers[name].copy_(value)
        if self._random is not None:
            set_raw_state(self._random)
        self._job.rules.load(self._rules)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)
