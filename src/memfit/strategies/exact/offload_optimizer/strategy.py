"""`offload-optimizer`: the optimizer works on states that are not in the device's memory.

On the CPU they are mapped files, which the optimizer steps in place: nothing is copied, and the same operators run on the
same values. Those of a model on a card are on the host, and come for the step of their parameter (`staging`). The idea for
cards: ZeRO-Offload, Ren et al. 2021, https://arxiv.org/abs/2101.06840.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.core.trace import Trace
from memfit.hardware.disks import offload_folder, why_unsuitable
from memfit.hooks.apart import why_coupled
from memfit.hooks.away import Store, zeros_away
from memfit.jobs import Job
from memfit.jobs.away import DISK, HOST, on_card
from memfit.strategies.exact.offload_optimizer.staging import Staging
from memfit.strategies.exact.offload_optimizer.states import AwayStates

_LEAST_BYTES = 64 * 1024  # below that a file of its own is mostly page ends


class OffloadOptimizer:
    """`place` is `disk`, or `host` beside a card; `folder` is where files are made (by default where temporary files go);
    tensors of `least_bytes` and more are moved."""

    name = "offload-optimizer"
    settings: tuple[str, ...] = ("place",)
    optional: tuple[str, ...] = ("folder", "least_bytes")
    takes = frozenset({"optimizer state"})
    after: tuple[str, ...] = ()
    conflicts: Mapping[str, str] = {}
    same_states = True  # a checkpoint written with it can be gone on from without it

    def excluded(self, job: Job, target: Device) -> str | None:
        if target.kind == "cpu":
            return why_unsuitable(offload_folder())
        return _why_not_staged(job.optimizer)

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return Fidelity.BITWISE

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        large = any(one.category == "optimizer_state" and one.nbytes >= _LEAST_BYTES for one in trace.storages)
        return [{"place": HOST if target.kind == "cuda" else DISK}] if large else []

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        optimizer = job.optimizer
        card = any(on_card(parameter) for parameter in job.model.parameters())
        reason = _why_not_staged(optimizer) if card else None
        if reason or (settings["place"] == HOST and not card):
            raise UsageError(f"offload-optimizer: {reason or 'states of a model on the CPU are on the host already'}",
                             "leave it out of the plan" if reason else f"place is {DISK!r} there")
        store = Store(settings["place"], str(settings.get("folder", "")))
        least_bytes = _size(settings.get("least_bytes", _LEAST_BYTES))
        mapping = partial(AwayStates, store, least_bytes)
        undo.push(partial(_put_back_states, optimizer))
        _replace_states(optimizer, mapping())
        handle = optimizer.register_load_state_dict_post_hook(partial(_loaded, mapping))
        undo.push(handle.remove)
        if card:
            Staging(optimizer).install(undo)
        else:
            _create_away(optimizer, partial(zeros_away, store, least_bytes), undo)

    def code(self, settings: Settings) -> CodePart | None:
        return None


def _size(value: object) -> int:
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"offload-optimizer: least_bytes is {value!r}", f"give a number of bytes, such as {_LEAST_BYTES}")
    return value


def _why_not_staged(optimizer: torch.optim.Optimizer) -> str | None:
    """One line if an optimizer's states cannot come to a card parameter by parameter."""
    if not hasattr(optimizer, "_init_group"):
        return f"{type(optimizer).__name__} looks up its states in a way of its own"
    return why_coupled(optimizer)


def _replace_states(optimizer: torch.optim.Optimizer, states: AwayStates) -> None:
    states.replaced, optimizer.state = optimizer.state, states
    states.take(states.replaced)


def _put_back_states(optimizer: torch.optim.Optimizer) -> None:
    states = optimizer.state
    if isinstance(states, AwayStates):
        states.give_back(states.replaced)
        optimizer.state = states.replaced


def _loaded(mapping: Callable[[], AwayStates], optimizer: torch.optim.Optimizer) -> None:
    """`load_state_dict` has put a mapping of its own in place."""
    if not isinstance(optimizer.state, AwayStates):
        _replace_states(optimizer, mapping())


def _create_away(optimizer: Any, zeros: Callable[[], AbstractContextManager[None]], undo: Undo) -> None:
    """torch's optimizers make states as zeros in `_init_group`: there they are made away. What others make is moved as it is
    put into the state."""
    original = getattr(optimizer, "_init_group", None)
    if original is None:
        return
    optimizer._init_group = partial(_init_away, optimizer, original, zeros)
    undo.push(partial(delattr, optimizer, "_init_group"))


def _init_away(
    optimizer: torch.optim.Optimizer, original: Callable[..., Any], zeros: Callable[[], AbstractContextManager[None]],
    group: dict[str, Any], *args: Any, **kwargs: Any,
) -> Any:
    """With states for all its parameters there is nothing to make."""
    known = all(parameter in optimizer.state for parameter in group["params"])
    with nullcontext() if known else zeros():
        return original(group, *args, **kwargs)


STRATEGY = OffloadOptimizer()
