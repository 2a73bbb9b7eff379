"""The log-sum-exp of a linear layer's outputs, a chunk of rows at a time: what a z-loss is made of.

Z-loss: the square of the log-sum-exp, weighted, beside the cross entropy (PaLM, https://arxiv.org/abs/2204.02311, section 5).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def linear_logsumexp(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
    """`torch.logsumexp(F.linear(hidden, weight, bias), -1)`, with `rows` rows of outputs at a time, forward and backward.

    `hidden` is [n, features], `weight` [classes, features]; the result [n], float32 or wider.
    """
    return _LinearLogSumExp.apply(hidden, weight, bias, rows)


class _LinearLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> torch.Tensor:
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        sums = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), rows):
                part = F.linear(hidden[start : start + rows], weight, bias).to(dtype)
                torch.logsumexp(part, 1, out=sums[start : start + rows])
        ctx.save_for_backward(hidden, weight, bias, sums)
        ctx.rows = rows
        return sums

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, sums = ctx.saved_tensors
        (grad,), needs = grad_outputs, ctx.needs_input_grad
        by_hidden = torch.empty_like(hidden) if needs[0] else None
        by_weight = torch.zeros_like(weight, dtype=sums.dtype) if needs[1] else None
        by_bias = torch.zeros_like(bias, dtype=sums.dtype) if bias is not None and needs[2] else None
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), ctx.rows):
                part = slice(start, start + ctx.rows)
                share = F.linear(hidden[part], weight, bias).to(sums.dtype).sub_(sums[part].unsqueeze(1)).exp_()
                share.mul_(grad[part].unsqueeze(1))
                if by_bias is not None:
                    by_bias += share.sum(0)
                share = share.to(hidden.dtype)
                if by_weight is not None:
                    by_weight += share.t() @ hidden[part]
                if by_hidden is not None:
                    torch.mm(share, weight, out=by_hidden[part])
        return (by_hidden, None if by_weight is None else by_weight.to(weight.dtype),
                None if by_bias is None else by_bias.to(weight.dtype), None)
