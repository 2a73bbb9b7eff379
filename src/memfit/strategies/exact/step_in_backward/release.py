"""Gradients used up one by one as backward makes them whole: stepped, or only measured for the norm, and dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memfit.core.errors import UsageError
from memfit.hooks.apart.one import step_one
from memfit.jobs import Job
from memfit.jobs.replay import ForwardState
from memfit.strategies.exact.step_in_backward.norms import measured, total_norm

TWO_PASS, PREVIOUS = "two-pass", "previous"
OnGradient = Callable[[Job, torch.Tensor], None]


class OneByOne:
    """Steps each parameter in the last backward of a window.

    Where the job clips, the norm must be known before the first step. In a window of one counted part, forward and
    backward run once before, only to measure (`two-pass`); or the norm of the window before stands in (`previous`, from
    the second window on). With several parts the gradients are alive until the last one anyway: they are measured when
    it is done, and stepped then.
    """

    def __init__(self, clipping: str) -> None:
        self.stepped = 0
        self._clipping = clipping
        self._groups: dict[int, dict[str, Any]] = {}
        self._on_gradient: OnGradient | None = None
        self._fired: set[int] = set()
        self._at_end = False
        self._norms: dict[int, torch.Tensor] = {}  # of single gradients, by the id of their parameter
        self._clip_by: torch.Tensor | None = None
        self._previous: torch.Tensor | None = None

    def gradient(self, job: Job, parameter: torch.Tensor) -> None:
        """The hook: backward has added to the gradient of `parameter`."""
        if self._on_gradient is None:
            return
        if id(parameter) in self._fired:
            raise UsageError(f"step-in-backward: backward reaches {_name(job, parameter)} several times (a shared layer in "
                             "reentrant checkpoints does that): its gradient is not whole at the first",
                             "checkpoint with use_reentrant=False, or leave step-in-backward out of the plan")
        self._fired.add(id(parameter))
        self._on_gradient(job, parameter)

    def begin(self, job: Job, counted: int, look: Callable[[], object]) -> None:
        self.stepped = 0
        self._groups = {id(p): group for group in job.optimizer.param_groups for p in group["params"]}
        self._norms.clear()
        self._clip_by, self._at_end = None, False
        if job.clip_norm is None:
            return
        if self._clipping == PREVIOUS and self._previous is not None:
            self._clip_by = self._previous
        elif counted > 1:
            self._at_end = True
        else:
            self._clip_by = self._looked(job, look)

    @contextmanager
    def last_backward(self) -> Iterator[None]:
        with self._seeing(None if self._at_end else self._step):
            yield

    def finish(self, job: Job) -> torch.Tensor | None:
        """Step what backward has left: all of it with several clipped parts; else parameters that got no gradient in the
        last part, and such as have no hook."""
        left = [p for group in job.optimizer.param_groups for p in group["params"] if p.grad is not None]
        if self._at_end:
            self._clip_by = total_norm([measured(p.grad) for p in left])
        for parameter in sorted(left, key=torch.Tensor.numel):  # the largest step has the largest temporaries: last
            self._step_now(job, parameter)
        norm = self._whole_norm(job) if self._norms else self._clip_by
        if self._clipping == PREVIOUS:
            self._previous = norm
        self._norms.clear()
        return norm

    def settle(self) -> None:
        if self._previous is None:
            self._previous = torch.tensor(1.0)

    def state(self) -> dict[str, Any]:
        norm = self._previous
        return {} if norm is None else {"previous_norm": float(norm), "dtype": str(norm.dtype).removeprefix("torch.")}

    def load(self, state: dict[str, Any]) -> None:
        norm = state.get("previous_norm")
        self._previous = None if norm is None else torch.tensor(norm, dtype=getattr(torch, state["dtype"]))

    def _looked(self, job: Job, look: Callable[[], object]) -> torch.Tensor:
        """The norm, by one pass whose gradients go as soon as they are measured; everything else is as before it."""
        state = ForwardState(job.model)
        others = [p for p in job.model.parameters() if id(p) not in self._groups and p.requires_grad]
        kept = [p.grad for p in others]
        _give(others, [None] * len(others))
        try:
            with self._seeing(self._measure):
                look()
            for group in job.optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._measure(job, parameter)
        finally:
            _give(others, kept)
        state.put_back()
        norm = self._whole_norm(job)
        self._norms.clear()
        return norm

    def _measure(self, job: Job, parameter: torch.Tensor) -> None:
        self._norms[id(parameter)] = measured(parameter.grad)
        parameter.grad = None

    def _whole_norm(self, job: Job) -> torch.Tensor:
        order = [id(p) for group in job.optimizer.param_groups for p in group["params"]]
        return total_norm([self._norms[one] for one in order if one in self._norms])

    def _step(self, job: Job, parameter: torch.Tensor) -> None:
        if job.rules.on_parameter_gradient is not None:
            job.rules.on_parameter_gradient(parameter)
        self._step_now(job, parameter)

    def _step_now(self, job: Job, parameter: torch.Tensor) -> None:
        """Clip, step, let go."""
        if job.clip_norm is not None and self._clip_by is not None:
            if self._clipping == PREVIOUS and not self._at_end:  # for the next window
                self._norms[id(parameter)] = measured(parameter.grad)
            torch.nn.utils.clip_grads_with_norm_([parameter], job.clip_norm, self._clip_by)
        self.stepped += 1
        with job.rules.wide(parameter):
            step_one(job.optimizer, self._groups[id(parameter)], parameter)
        parameter.grad = None

    @contextmanager
    def _seeing(self, on_gradient: OnGradient | None) -> Iterator[None]:
        self._fired.clear()
        self._on_gradient = on_gradient
        try:
            yield
        finally:
            self._on_gradient = None


def _give(parameters: list[torch.nn.Parameter], gradients: list[Any]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def _name(job: Job, parameter: torch.Tensor) -> str:
    return next((name for name, one in job.model.named_parameters() if one is parameter), "a parameter")
