"""What people do by hand to need less memory, in plain PyTorch: each method changes a job and gives its training step.

Nothing of memfit's strategies is used; `Job` only holds model, loss, batch and optimizer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from memfit.jobs import Job, batches

Step = Callable[[], torch.Tensor]
aten: Any = torch.ops.aten
_BLOCKS = ("ResNetBottleNeckLayer", "ViTLayer", "BertLayer", "GPT2Block", "ConvBlock", "LinearBlock")
_DEAR = frozenset({
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default})
COMBINED = ("checkpoint", "selective")
COMPILED = ("compile-0.75", "compile-0.5", "compile-0.25", "compile-0.1")  # with an activation memory budget
METHODS = (
    "plain", "checkpoint", "selective", "micro-2", "micro-4", "micro-8", "backward-step", "compile", *COMPILED, "autocast",
    "adamw-8bit",
    "micro-2+checkpoint", "micro-4+checkpoint", "micro-8+checkpoint", "micro-4+selective", "micro-8+selective",
    "checkpoint+backward-step", "selective+backward-step", "micro-4+checkpoint+backward-step",
    "micro-8+checkpoint+backward-step")


def peer_step(job: Job, method: str) -> Step:
    """The job's step as `method` has it: parts joined by `+`. Raises ValueError for one that is not known."""
    parts = method.split("+")
    count = next((int(one.removeprefix("micro-")) for one in parts if one.startswith("micro-")), 1)
    for one in parts:
        if one in COMBINED:
            _checkpoint_blocks(job.model, one)
    compiled = next((one for one in parts if one.startswith("compile")), "")
    if compiled in COMPILED:
        functorch_config.activation_memory_budget = float(compiled.removeprefix("compile-"))
    forward = torch.compile(job.model) if compiled else job.model
    if "adamw-8bit" in parts:
        _in_8_bits(job)
    early = "backward-step" in parts
    if early:
        _step_in_backward(job)
    lowered = "autocast" in parts
    known = (*COMBINED, *COMPILED, "plain", "compile", "backward-step", "autocast", "adamw-8bit")
    unknown = [p for p in parts if p not in known and not p.startswith("micro-")]
    if unknown:
        raise ValueError(f"no such method: {unknown}")
    return functools.partial(_step, job, forward, count, early, lowered)


def _step(job: Job, forward: Any, count: int, early: bool, lowered: bool) -> torch.Tensor:
    total = torch.zeros(())
    parts = batches.split(job.batch, count)
    for place, part in enumerate(parts):
        job.__dict__["peer_last"] = place == len(parts) - 1
        with torch.autocast("cpu", torch.bfloat16, enabled=lowered):
            loss = job.loss(forward, part) / count
        loss.backward()
        total += loss.detach()
    if not early:
        job.optimizer.step()
        job.optimizer.zero_grad(set_to_none=True)
    return total


def _checkpoint_blocks(model: nn.Module, kind: str) -> None:
    """Every block of the model, without reentrance; `selective` keeps matrix products, convolutions and attention."""
    contexts = functools.partial(create_selective_checkpoint_contexts, _keep_dear)
    for module in model.modules():
        if type(module).__name__ in _BLOCKS:
            more = {"context_fn": contexts} if kind == "selective" else {}
            module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False, **more)


def _keep_dear(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if func in _DEAR else CheckpointPolicy.PREFER_RECOMPUTE


def _in_8_bits(job: Job) -> None:
    """torchao's AdamW in place of torch's, with its settings."""
    from torchao.optim import AdamW8bit

    known = ("lr", "betas", "eps", "weight_decay")
    job.__dict__["_optimizer"] = AdamW8bit(job.model.parameters(), **{name: job.optimizer.defaults[name] for name in known})


def _step_in_backward(job: Job) -> None:
    """One optimizer for each parameter, stepped by a hook as soon as its gradient is whole: PyTorch's own tutorial, and
    in the last part only where there are micro-batches."""
    kind = type(job.optimizer)
    known = inspect.signature(kind.__init__).parameters
    defaults = {name: value for name, value in job.optimizer.defaults.items() if name in known}
    optimizers = {p: kind([p], **defaults) for p in job.model.parameters() if p.requires_grad}
    job.optimizer.param_groups.clear()
    job.__dict__["peer_optimizers"] = optimizers

    def hook(parameter: torch.Tensor) -> None:
        if not job.__dict__["peer_last"]:
            return
        optimizers[parameter].step()
        optimizers[parameter].zero_grad(set_to_none=True)

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(hook)
