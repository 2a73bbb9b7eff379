"""What some steps of a module leave, to compare two ways of running it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn


def stepped(module: nn.Module, inputs: Callable[[], torch.Tensor], steps: int,
            forward: Callable[[], AbstractContextManager[None]] = nullcontext) -> list[torch.Tensor]:
    """Losses, gradients (the input's and the parameters') and buffers of some seeded steps, each forward inside `forward`."""
    seen: list[torch.Tensor] = []
    for step in range(steps):
        torch.manual_seed(step)
        x = inputs().requires_grad_()
        module.zero_grad()
        with forward():
            loss = module(x).float().square().sum()
        loss.backward()
        assert x.grad is not None
        seen += [loss.detach(), x.grad, *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
        seen += [buffer.clone() for buffer in module.buffers()]
    return seen
