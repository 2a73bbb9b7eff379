"""Cross entropy of a linear layer's outputs, a chunk of rows at a time; gradients are made along the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


@dataclass(frozen=True)
class CrossEntropySettings:
    """What `F.cross_entropy` was asked for, and how many rows a chunk has. `gradients` is false without a graph."""

    rows: int
    ignore_index: int = -100
    mean: bool = True
    smoothing: float = 0.0
    gradients: bool = True


def linear_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor,
    settings: CrossEntropySettings,
) -> torch.Tensor:
    """`F.cross_entropy(F.linear(hidden, weight, bias), target)` without the logits.

    `hidden` is [rows, features], `weight` [classes, features], `target` [rows] of class indices. The result is a
    scalar, float32 or wider. Ignored rows are never projected; a mean over none is NaN with zero gradients,
    as in torch.
    """
    return _LinearCrossEntropy.apply(hidden, weight, bias, target, settings)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor,
        settings: CrossEntropySettings,
    ) -> torch.Tensor:
        sums = _Sums(hidden, weight, bias, settings, ctx.needs_input_grad[:3])
        with torch.autocast(hidden.device.type, enabled=False):
            sums.add_all(target)
            gradients = sums.gradients()
        ctx.save_for_backward(*gradients, sums.enlarged)
        return sums.loss()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grad_outputs
        *gradients, enlarged = ctx.saved_tensors
        # In place: a copy of the head's gradient would be as large as the head. It marks the saved tensors as
        # changed, so that a second backward through this graph raises instead of being wrong.
        if enlarged is None:
            scaled = [None if one is None else one.mul_(grad.to(one.dtype)) for one in gradients]
        else:  # the scale of the loss may be beyond the range of float16: in float32
            factor = grad / enlarged
            scaled = [None if one is None else one.float().mul_(factor).half() for one in gradients]
        return (*scaled, None, None)


_LARGEST = 2.0**14  # a quarter of float16's range


class _Sums:
    """The loss and the gradients of hidden, weight and bias, summed over chunks of rows.

    In float16 gradients are made before the loss is scaled, and would vanish: they are made `enlarged` times, by what no
    sum of a chunk's rows can carry out of range.
    """

    def __init__(
        self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, settings: CrossEntropySettings,
        needs: tuple[bool, ...],
    ) -> None:
        self.hidden, self.weight, self.bias, self.settings = hidden, weight, bias, settings
        self.needs = tuple(need and settings.gradients for need in needs)
        self.dtype = torch.promote_types(hidden.dtype, torch.float32)
        self.total = torch.zeros((), dtype=self.dtype, device=hidden.device)
        self.count = 0
        self.enlarged = _room(hidden, settings.rows) if hidden.dtype == torch.float16 and any(self.needs) else None
        self.grad_hidden: torch.Tensor | None = None
        self.grad_weight = torch.zeros_like(weight, dtype=self.dtype) if self.needs[1] else None
        self.grad_bias = torch.zeros_like(bias, dtype=self.dtype) if bias is not None and self.needs[2] else None

    def add_all(self, target: torch.Tensor) -> None:
        kept = _kept(target, self.settings.ignore_index)
        self.count = len(target) if kept is None else len(kept)
        if self.needs[0]:
            self.grad_hidden = torch.empty_like(self.hidden) if kept is None else torch.zeros_like(self.hidden)
        for start in range(0, self.count, self.settings.rows):
            stop = min(start + self.settings.rows, self.count)
            self._add(target, slice(start, stop) if kept is None else kept[start:stop])

    def loss(self) -> torch.Tensor:
        return self.total / self.count if self.settings.mean else self.total

    def gradients(self) -> tuple[torch.Tensor | None, ...]:
        """Of the dtypes of their tensors; in float16 the sums stay in float32 until their scale is known."""
        weight, bias, self.grad_weight = self.grad_weight, self.grad_bias, None
        if self.enlarged is None:
            weight = None if weight is None else weight.to(self.weight.dtype)
            bias = None if bias is None else bias.to(self.weight.dtype)
        elif self.settings.mean:
            self.enlarged *= max(self.count, 1)
        return self.grad_hidden, weight, bias

    def _add(self, target: torch.Tensor, rows: slice | torch.Tensor) -> None:
        hidden, wanted = self.hidden[rows], target[rows].unsqueeze(1)
        logits = F.linear(hidden, self.weight, self.bias).to(self.dtype)
        sums = self._add_loss(logits, wanted)
        if any(self.needs):
            self._add_gradients(hidden, self._logit_gradient(logits, wanted, sums), rows)

    def _add_loss(self, logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Add the chunk's loss; `logits` become their exponentials in place. Gives the sums of those, [rows, 1]."""
        smoothing = self.settings.smoothing
        top = logits.amax(1, keepdim=True)
        logits.sub_(top)
        score = logits.gather(1, wanted)
        if smoothing:
            score = (1 - smoothing) * score + smoothing * logits.mean(1, keepdim=True)
        sums = logits.exp_().sum(1, keepdim=True)
        self.total += (sums.log() - score).sum()
        return sums

    def _logit_gradient(self, exponentials: torch.Tensor, wanted: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        """The gradient by the logits, in their place."""
        smoothing = self.settings.smoothing
        if self.enlarged is not None:
            scale: Any = self.enlarged
            known = torch.full_like(sums, smoothing - 1.0).mul_(scale)
        else:
            scale = 1 / self.count if self.settings.mean else 1.0
            known = torch.full_like(sums, -scale * (1 - smoothing))
        gradient = exponentials.mul_(scale / sums)
        gradient.scatter_add_(1, wanted, known)
        return gradient.sub_(scale * smoothing / gradient.shape[1]) if smoothing else gradient

    def _add_gradients(self, hidden: torch.Tensor, gradient: torch.Tensor, rows: slice | torch.Tensor) -> None:
        if self.grad_bias is not None:
            self.grad_bias += gradient.sum(0)
        gradient = gradient.to(hidden.dtype)
        if self.grad_weight is not None:
            if self.grad_weight.dtype == hidden.dtype:
                self.grad_weight.addmm_(gradient.t(), hidden)
            else:  # 16 bit: sums over chunks are kept in 32
                self.grad_weight += gradient.t() @ hidden
        if self.grad_hidden is not None:
            if isinstance(rows, slice):
                torch.mm(gradient, self.weight, out=self.grad_hidden[rows])
            else:
                self.grad_hidden.index_copy_(0, rows, gradient @ self.weight)


def _room(hidden: torch.Tensor, rows: int) -> torch.Tensor:
    """How much larger a row's gradient by its logits (at most 1) may be made, so that sums of `rows` of them, weighted by
    the hidden features, stay within float16 (a float32 scalar)."""
    largest = torch.linalg.vector_norm(hidden, float("inf")).float()
    return (_LARGEST / (min(rows, len(hidden)) * largest.clamp_min(2.0**-8))).clamp_max(2.0**12)


def _kept(target: torch.Tensor, ignore_index: int) -> torch.Tensor | None:
    """Indices of the rows that count; None for all (also where values are unknown: fake tensors)."""
    try:
        rows = (target != ignore_index).nonzero().squeeze(1)
    except DynamicOutputShapeException:
        return None
    return None if len(rows) == len(target) else rows
