"""`offload-activations`: what autograd saves waits for backward away from the device, and comes back bit by bit the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.core.trace import Trace
from memfit.hardware.disks import offload_folder, why_unsuitable
from memfit.hooks import call_forward, override_forward
from memfit.hooks.away import Store
from memfit.jobs import Job, batches
from memfit.jobs.away import DISK, HOST
from memfit.strategies.exact.offload_activations.packing import Packing, counted
from memfit.strategies.exact.offload_activations.slots import Slots

_LEAST_BYTES = 64 * 1024  # what is smaller costs more time than it is worth
_SHARES = (0.3, 0.6, 0.9)


class OffloadActivations:
    """Saved storages of `least_bytes` and more go to `place` (`disk` on the CPU, `host` or `disk` for a card); on disk to files
    in `folder` (by default where temporary files go). `modules` are paths: only what is saved while one of them runs.
    """

    name = "offload-activations"
    settings: tuple[str, ...] = ("place", "least_bytes")
    optional: tuple[str, ...] = ("folder", "modules")
    takes = frozenset({"saved tensors"})
    after: tuple[str, ...] = ("checkpoint", "chunked-loss")
    conflicts: Mapping[str, str] = {"compile": "the compiler would trace what moves tensors away"}

    def excluded(self, job: Job, target: Device) -> str | None:
        return why_unsuitable(offload_folder()) if target.kind == "cpu" else None

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return Fidelity.BITWISE

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        """The largest tensors only, then more and more of what is saved."""
        place = HOST if target.kind == "cuda" else DISK
        sizes = sorted((size for size in saved_sizes(trace) if size >= _LEAST_BYTES), reverse=True)
        total, least = sum(sizes), []
        for share in _SHARES if sizes else ():
            reached = 0
            for size in sizes:
                reached += size
                if reached >= share * total:
                    least.append(size)
                    break
        found = [*least, *([_LEAST_BYTES] if sizes else [])]
        return [{"place": place, "least_bytes": size} for size in dict.fromkeys(found)]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        least_bytes = settings["least_bytes"]
        if not isinstance(least_bytes, int) or least_bytes < 1:
            raise UsageError(f"offload-activations: least_bytes is {least_bytes!r}",
                             f"give a number of bytes, such as {_LEAST_BYTES}")
        modules = _modules(job.model, settings.get("modules", []))
        packing = Packing(Slots(Store(settings["place"], str(settings.get("folder", "")))), least_bytes, bool(modules))
        undo.push(partial(setattr, job, "loss", job.loss))
        job.loss = partial(offloading, packing, job.loss)
        for module in modules:
            override_forward(module, chosen, undo)

    def code(self, settings: Settings) -> CodePart | None:
        return None


def saved_sizes(trace: Trace) -> list[int]:
    """Bytes of each storage that is made in a forward and read in its backward."""
    born = {index for index, one in enumerate(trace.storages) if one.category == "activations" and not one.place}
    read = {index for op in trace.ops if op.phase == "backward" for index in op.reads}
    return [trace.storages[index].nbytes for index in born & read]


def offloading(packing: Packing, loss: Callable[[nn.Module, Any], torch.Tensor], model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss, computed with what it saves moved away."""
    with packing.forward(chain(model.parameters(), model.buffers(), batches.tensors(batch))):
        return loss(model, batch)


def chosen(module: nn.Module, previous: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    """A module whose saved tensors are moved."""
    counted(1)
    try:
        return call_forward(module, previous, *args, **kwargs)
    finally:
        counted(-1)


def _modules(model: nn.Module, paths: object) -> list[nn.Module]:
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, str) for path in paths):
        raise UsageError(f"offload-activations: modules is {paths!r}", "give a list of module paths; an empty one means all")
    known = dict(model.named_modules())
    for path in paths:
        if path not in known:
            raise UsageError(f"offload-activations: the model has no module {path!r}",
                             f"its modules are {', '.join(list(known)[1:9])}, ...")
    return [known[path] for path in paths]


STRATEGY = OffloadActivations()
