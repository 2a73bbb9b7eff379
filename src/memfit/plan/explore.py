"""Candidates as traces: choices applied to one fake job by the code that applies them to the real one, and undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from memfit.apply import apply_choices
from memfit.core.device import Device
from memfit.core.errors import MemfitError
from memfit.core.strategy import Choice
from memfit.core.trace import Trace
from memfit.jobs import Job
from memfit.plan.room import room, why_too_much
from memfit.plan.target import named_device, target_device
from memfit.simulate import Simulation, simulate
from memfit.trace import FakeWorld, fake_job, trace_step
from memfit.trace.cuda import target_of

HOOKED = ("recompute",)  # see every operator of forward from Python (compress-activations does, too; its own are the most)


@dataclass(frozen=True)
class Candidate:
    """Choices with their steady-state trace and its simulation."""

    choices: tuple[Choice, ...]
    trace: Trace
    simulation: Simulation


class Explorer:
    """One fake copy of a job, traced for a device (None: the CPU) under different choices. Each set is traced once.

    `torch_version` is the one whose kernels and libraries a card runs, where that is not the one here. `limits` are bytes that
    may be away, by place (default: `room()`): a mix that needs more cannot be.
    """

    def __init__(self, job: Job, device: str | Device | None, torch_version: str = "",
                 limits: Mapping[str, int] | None = None) -> None:
        self._limits = room() if limits is None else limits
        self.torch_version = torch_version or torch.__version__
        self._world = FakeWorld(target_of(named_device(device), torch_version))
        self.fake = fake_job(job, self._world)
        self.first = trace_step(self.fake, self._world)
        self.device = target_device(device)  # after the trace: what is wrong with a job is told before rates are measured
        self.plain = Candidate((), *self._traced(self.first))
        self._graded = {id(parameter) for parameter in self.fake.model.parameters() if parameter.grad is not None}
        self._known: dict[str, Candidate | str] = {}
        self.traced = 0

    def candidate(self, choices: Sequence[Choice]) -> Candidate | str:
        """The choices applied, traced and simulated; or one line saying why that cannot be."""
        if not choices:
            return self.plain
        key = repr([(c.name, sorted(c.settings.items(), key=repr)) for c in choices])
        if key not in self._known:
            self._known[key] = self._explore(tuple(choices))
        return self._known[key]

    def seen(self) -> list[Candidate]:
        """Every candidate traced so far, plain first."""
        return [self.plain, *(one for one in self._known.values() if isinstance(one, Candidate))]

    def _explore(self, choices: tuple[Choice, ...]) -> Candidate | str:
        self.traced += 1
        try:
            undo = apply_choices(self.fake, choices)
        except MemfitError as error:
            return error.message
        try:
            trace, seen = self._traced(hooked=any(one.name in HOOKED for one in choices))
            return why_too_much(seen.away, self._limits) or Candidate(choices, trace, seen)
        except MemfitError as error:
            return error.message
        finally:
            undo()
            self._between_steps()

    def released(self, choices: Sequence[Choice]) -> Candidate | str:
        """The choices for a job that lets its gradients go after each step, where this one keeps them."""
        kept, self.fake.zero_grad = self.fake.zero_grad, "after_step"
        try:
            self.fake.optimizer.zero_grad(set_to_none=True)
            return self._explore(tuple(choices))
        finally:
            self.fake.zero_grad = kept
            self._between_steps()

    def _between_steps(self) -> None:
        """Gradients are there as the plain step leaves them, whatever has been traced."""
        self.fake.optimizer.zero_grad(set_to_none=True)
        if self.fake.zero_grad != "after_step":
            with self._world.building():
                for parameter in self.fake.model.parameters():
                    parameter.grad = torch.empty_like(parameter) if id(parameter) in self._graded else None

    def _traced(self, first: Trace | None = None, *, hooked: bool = False) -> tuple[Trace, Simulation]:
        trace = trace_step(self.fake, self._world)
        return trace, simulate(trace, self.device, hooked=hooked, first=first, torch_version=self.torch_version)
