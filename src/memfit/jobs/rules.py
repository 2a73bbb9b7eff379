"""What strategies change about the training step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from memfit.jobs.job import Job
    from memfit.jobs.scaling import LossScaling


class Release(Protocol):
    """How gradients are used up one by one as backward makes them whole, in place of one step on all of them.

    `stepped` counts the parameters that the window under way has stepped: these cannot be taken back.
    """

    stepped: int

    def begin(self, job: Job, counted: int, look: Callable[[], object]) -> None:
        """A window of `counted` parts begins. `look()` runs forward and backward of its first part once more, before."""
        ...

    def last_backward(self) -> AbstractContextManager[None]:
        """Around the backward after which the window's gradients are whole."""
        ...

    def finish(self, job: Job) -> torch.Tensor | None:
        """Step what is left; the norm of the window's gradients before clipping, where the job clips."""
        ...

    def settle(self) -> None:
        """Go on as if there had been a window before: what a trace of the steady state is of."""
        ...

    def state(self) -> dict[str, Any]:
        """What the next window needs of this one, as plain numbers."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave."""
        ...


class Narrow(Protocol):
    """How parameters that are held in fewer bytes than the optimizer works on are stepped."""

    def wide(self, parameter: torch.Tensor) -> AbstractContextManager[None]:
        """Inside, the parameter and its gradient are as the optimizer wants them; on leaving, the parameter is held again."""
        ...

    def stepped(self) -> AbstractContextManager[None]:
        """Steps those that have a gradient, one by one; inside, these gradients are out of the way of `optimizer.step()`."""
        ...

    def state(self) -> dict[str, Any]:
        """What the next step needs of those before, as plain values."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave."""
        ...


@dataclass
class StepRules:
    """How strategies change the step: they set these, and their undo sets them back.

    `contexts` are entered around each forward. With a `release`, hooks step each parameter as its gradient is whole, and
    drop the gradient after `on_parameter_gradient(parameter)` has seen it (unclipped); the window's `optimizer.step()`
    then finds no gradients, and tells schedulers and step hooks as ever. `scaling` scales losses, for float16. With `narrow`
    parameters are not held as the optimizer works on them.
    """

    micro_batches: int = 1
    contexts: list[Callable[[], AbstractContextManager[Any]]] = field(default_factory=list)
    release: Release | None = None
    scaling: LossScaling | None = None
    narrow: Narrow | None = None
    on_parameter_gradient: Callable[[torch.Tensor], None] | None = None

    @property
    def optimizer_in_backward(self) -> bool:
        return self.release is not None

    def wide(self, parameter: torch.Tensor) -> AbstractContextManager[None]:
        """Around the step of a single parameter."""
        return self.narrow.wide(parameter) if self.narrow is not None else nullcontext()

    def stepped(self) -> AbstractContextManager[None]:
        """Around the window's `optimizer.step()`."""
        return self.narrow.stepped() if self.narrow is not None else nullcontext()

    def state(self) -> dict[str, Any]:
        """What the next window needs besides model, optimizer and scheduler: plain numbers, by part."""
        parts = {"release": self.release, "scaling": self.scaling, "narrow": self.narrow}
        return {name: part.state() for name, part in parts.items() if part is not None}

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave; parts that only one of both has are left as they are."""
        for name, part in (("release", self.release), ("scaling", self.scaling), ("narrow", self.narrow)):
            if part is not None and name in state:
                part.load(state[name])
