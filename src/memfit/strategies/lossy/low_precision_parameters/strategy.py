"""`low-precision-parameters`: matrices in bfloat16, computed with under autocast, stepped in float32 one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import nn

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import CodePart, Settings, Undo
from memfit.core.trace import Trace
from memfit.hooks import override_forward
from memfit.hooks.apart import why_coupled
from memfit.jobs import Job
from memfit.strategies.lossy.low_precision_parameters.computing import under_autocast
from memfit.strategies.lossy.low_precision_parameters.held import KAHAN, STOCHASTIC, HeldLow

_ROUNDINGS = (STOCHASTIC, KAHAN)


class LowPrecisionParameters:
    """`rounding`: `stochastic` rounds each update up or down at random; `kahan` keeps what was rounded off, in 16 bits, in the
    optimizer's state.

    Vectors (biases, normalisations), buffers and recurrent layers stay float32, and so do the optimizer's states.
    """

    name = "low-precision-parameters"
    settings: tuple[str, ...] = ("rounding",)
    takes = frozenset({"parameter storage", "precision"})
    after: tuple[str, ...] = ("single-tensor-step", "fused-step", "offload-optimizer", "optimizer-8bit", "optimizer-4bit",
                              "optimizer-fp8", "optimizer-bf16", "optimizer-factored")
    conflicts: Mapping[str, str] = {
        "autocast": "what is computed with parameters in bfloat16 is under autocast already",
    }

    def excluded(self, job: Job, target: Device) -> str | None:
        if not _matrices(job.model):
            return "the model has no float32 parameter of two dimensions or more"
        if any(isinstance(one, (nn.Embedding, nn.EmbeddingBag)) and one.sparse for one in job.model.modules()):
            return "the model has an embedding with sparse gradients"
        return why_coupled(job.optimizer)

    def fidelity(self, job: Job, settings: Settings) -> Fidelity:
        return Fidelity.REDUCED

    def choices(self, job: Job, trace: Trace, target: Device) -> Sequence[Settings]:
        return [{"rounding": KAHAN}, {"rounding": STOCHASTIC}]

    def apply(self, job: Job, settings: Settings, undo: Undo) -> None:
        rounding = settings.get("rounding")
        if rounding not in _ROUNDINGS:
            raise UsageError(f"low-precision-parameters: rounding is {rounding!r}", f"one of {', '.join(_ROUNDINGS)}")
        reason = self.excluded(job, _ANY)
        if reason:
            raise UsageError(f"low-precision-parameters: {reason}", "leave it out of the plan")
        parameters = _matrices(job.model)
        held = HeldLow(job, parameters, str(rounding))
        for parameter in parameters:
            held.take(parameter)
            undo.push(partial(held.give_back, parameter))
        undo.push(partial(setattr, job.rules, "narrow", job.rules.narrow))
        job.rules.narrow = held
        before = job.rules.contexts
        undo.push(partial(setattr, job.rules, "contexts", before))
        job.rules.contexts = [*before, partial(torch.autocast, parameters[0].device.type, dtype=torch.bfloat16)]
        override_forward(job.model, under_autocast, undo)

    def code(self, settings: Settings) -> CodePart | None:
        return None


def _matrices(model: nn.Module) -> list[nn.Parameter]:
    """What is held in bfloat16. Recurrent kernels want all of their parameters in one dtype."""
    recurrent = [module for module in model.modules() if isinstance(module, (nn.RNNBase, nn.RNNCellBase))]
    kept = {id(p) for module in recurrent for p in module.parameters()}
    return [p for p in model.parameters() if p.dtype is torch.float32 and p.dim() >= 2 and id(p) not in kept]


_ANY = Device("any", "any", 0, {}, 1.0)

STRATEGY = LowPrecisionParameters()
