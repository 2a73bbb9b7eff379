"""`chunked-loss{rows, module}`: the last linear layer gives lazy logits, and their cross entropy runs in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.core.trace import ModuleCall, Trace
from memfit.hooks import override_forward, source, tensor_facts
from memfit.jobs import Job
from memfit.strategies.exact.chunked_loss import cross_entropy, lazy_logits, logsumexp

LEAST_CLASSES = 4096
_CARRIERS = ("_to_copy", "clone", "copy", "copy_")  # casts and copies on the way from the head to the loss
_SHARES = (4, 16, 64)
_LEAST_ROWS = 32


class ChunkedLoss:
    """`module` is the path of the linear layer over the vocabulary, `rows` how many rows of logits exist at a time."""

    name = "chunked-loss"
    settings: tuple[str, ...] = ("rows", "module")
    takes = frozenset({"loss"})
    after: tuple[str, ...] = ()
    conflicts: Mapping[str, str] = {}

    def excluded(self, job: Job, target: Device) -> str | None:
        if any(_is_head(module) for module in job.model.modules()):
            return None
        return f"no nn.Linear of the model has {LEAST_CLASSES} outputs or more"

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return Fidelity.REORDERED

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        """A quarter, a sixteenth and a sixty-fourth of the rows at a time, as powers of two."""
        found = head(job, trace)
        if found is None:
            return []
        path, count = found
        sizes = {max(_LEAST_ROWS, 1 << (max(1, count // share).bit_length() - 1)) for share in _SHARES}
        return [{"rows": rows, "module": path} for rows in sorted(sizes, reverse=True) if rows < count]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        rows, path = settings.get("rows"), settings.get("module")
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise UsageError(f"chunked-loss: rows is {rows!r}", "give a whole number from 1 up")
        module = dict(job.model.named_modules()).get(str(path))
        if module is None or not _plain_linear(module):
            raise UsageError(f"chunked-loss: {path!r} is not a plain nn.Linear of the model",
                             "name the layer that makes the logits")
        override_forward(module, lazy_logits.lazy_linear, undo, rows=rows)

    def absent(self, settings: Settings, trace: Trace) -> str | None:
        path = str(settings["module"])
        calls = [call for call in trace.calls if call.path == path and call.outputs]
        if not any(_reaches_loss(trace, call) for call in calls):
            return f"no cross entropy reads what {path!r} gives"
        classes = max(trace.storages[call.outputs[0]].shape[-1] for call in calls)
        return f"{path!r} has {classes} outputs, and gains nothing below {LEAST_CLASSES}" if classes < LEAST_CLASSES else None

    def code(self, settings: Settings) -> CodePart:
        return CodePart(prelude="from functools import partial\n" + source(tensor_facts, cross_entropy, logsumexp, lazy_logits),
                        setup=_SETUP.format(path=settings["module"], rows=settings["rows"]))


def head(job: Job, trace: Trace) -> tuple[str, int] | None:
    """Path of the linear layer whose outputs reach a log-softmax, and how many rows it gives; the widest one."""
    modules = dict(job.model.named_modules())
    found: list[tuple[int, str, int]] = []
    for call in trace.calls:
        if call.outputs and _is_head(modules[call.path]) and _reaches_loss(trace, call):
            made = trace.storages[call.outputs[0]]
            elements = made.nbytes // getattr(torch, made.dtype).itemsize
            found.append((made.nbytes, call.path, elements // made.shape[-1]))
    return max(found)[1:] if found else None


def _is_head(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and _plain_linear(module) and module.out_features >= LEAST_CLASSES


def _plain_linear(module: nn.Module) -> bool:
    """A linear layer with the forward of `nn.Linear`: its weight and bias say all that it does."""
    own = module.__dict__.get("forward")
    return isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward and own is None


def _reaches_loss(trace: Trace, call: ModuleCall) -> bool:
    carried = set(call.outputs)
    for op in trace.ops:
        if op.phase == "forward" and carried.intersection(op.reads):
            if op.name == "_log_softmax":
                return True
            if op.name in _CARRIERS:
                carried.update(op.writes)
    return False


_SETUP = """
head = model.get_submodule({path!r})
head.forward = partial(lazy_linear, head, None, rows={rows})
""".strip()

STRATEGY = ChunkedLoss()
