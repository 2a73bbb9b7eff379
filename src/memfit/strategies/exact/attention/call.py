"""What has been asked of attention scores so far, and the one call that gives the same result without them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

_AS_GOOD_AS_INFINITE = -1e9
_HIDDEN = -100.0


@dataclass
class Draw:
    """Dropout of one tensor of weights: `fused` where a kernel drew it, so that nobody can know which were dropped."""

    fused: bool = False
    drawn: bool = False


@dataclass(frozen=True)
class Masking:
    """Something added to the scores (`fill` is None), or the places that are filled with a very negative number."""

    tensor: torch.Tensor
    fill: float | None = None


@dataclass(frozen=True)
class Call:
    """Scores `left @ right * scale`, masked: [*lead, L, E] and [*lead, E, S], 3 or 4 dimensions. `shape` is what the user
    sees, whose leading dimensions may be split or merged. `weights`: softmax was taken. `versions` are the inputs': they
    must still be those when the scores are used."""

    left: torch.Tensor
    right: torch.Tensor
    shape: tuple[int, ...]
    dtype: torch.dtype
    scale: float = 1.0
    masks: tuple[Masking, ...] = ()
    weights: bool = False
    dropout: float = 0.0
    draw: Draw | None = None
    versions: tuple[tuple[torch.Tensor, int], ...] = ()

    def masked(self, masking: Masking) -> Call | None:
        """With one more mask; None where the result would not be that of masked scores for every kernel."""
        mask, fill = masking.tensor, masking.fill
        if self.weights or mask.requires_grad or mask.device != self.left.device or not _covers(mask, self.shape):
            return None
        if fill is None and not mask.is_floating_point():
            return None
        if fill is not None and (mask.dtype != torch.bool or not _hides(fill, self.dtype) or self._filled):
            return None
        if fill is None and self._filled:  # what was filled would be added to
            return None
        lead = self.left.shape[:-2]
        if self.shape[:-2] != lead and mask.dim() > 2 and any(size != 1 for size in mask.shape[:-2]):
            if self.masks:
                return None
            moved = replace(self, left=self.left.reshape(*self.shape[:-2], *self.left.shape[-2:]),
                            right=self.right.reshape(*self.shape[:-2], *self.right.shape[-2:]))
            return moved.masked(masking)
        dtype = torch.promote_types(self.dtype, mask.dtype) if fill is None and mask.dim() else self.dtype
        return replace(self, masks=(*self.masks, masking), dtype=dtype, versions=(*self.versions, (mask, version(mask))))

    @property
    def _filled(self) -> bool:
        return any(masking.fill is not None for masking in self.masks)

    def check(self) -> None:
        """Raise RuntimeError where an input was written to since."""
        if any(version(tensor) != known for tensor, known in self.versions):
            raise RuntimeError("the inputs of an attention were changed in place before its scores were used: leave the module "
                               "out of the plan's attention modules")

    def serves(self, value: torch.Tensor) -> bool:
        """Whether `weights @ value` is one call of `scaled_dot_product_attention`."""
        same = (self.weights and value.dim() == len(self.shape) and value.shape[:-2] == self.shape[:-2]
                and value.shape[-2] == self.shape[-1] and value.device == self.left.device)
        if torch.is_autocast_enabled(self.left.device.type):
            return same and value.is_floating_point()
        return same and value.dtype == self.left.dtype == self.dtype

    def fused(self, value: torch.Tensor) -> torch.Tensor | None:
        """`weights @ value`, [*shape[:-2], L, features of value]; None where a row hides every place."""
        self.check()
        mask = self._mask()
        if mask is not None and _hides_a_row(mask):
            return None
        lead = self.left.shape[:-2]
        four = [_four(one) for one in (self.left, self.right.mT, value.reshape(*lead, *value.shape[-2:]))]
        out = F.scaled_dot_product_attention(*four, attn_mask=mask, dropout_p=self.dropout, scale=self.scale)
        if self.draw is not None:
            self.draw.fused = True
        return out.reshape(*self.shape[:-1], value.shape[-1])

    def _mask(self) -> torch.Tensor | None:
        """All masks as one, which has 2 or 4 dimensions; bool (true: attend) where what is hidden weighs exactly nothing."""
        added = [masking.tensor for masking in self.masks if masking.fill is None]
        filled = next((masking for masking in self.masks if masking.fill is not None), None)
        whole = sum(added[1:], added[0]) if added else None
        kind = self.left.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.left.dtype
        if whole is not None and whole.dtype != dtype:
            whole = whole.clamp(min=torch.finfo(dtype).min).to(dtype)
        if filled is not None:
            fill = -math.inf if filled.fill == -math.inf else torch.finfo(dtype).min
            if whole is not None:
                whole = torch.where(filled.tensor, fill, whole)
            elif fill == -math.inf:
                whole = ~filled.tensor
            else:
                whole = torch.zeros((), dtype=dtype, device=self.left.device).masked_fill(filled.tensor, fill)
        return whole if whole is None else self._placed(whole)

    def _placed(self, mask: torch.Tensor) -> torch.Tensor:
        if mask.dim() < 2:
            mask = mask.reshape(*(1,) * (2 - mask.dim()), *mask.shape)
        if mask.dim() == 2:
            return mask
        mask = mask.reshape(*(1,) * (self.left.dim() - mask.dim()), *mask.shape)
        return mask.unsqueeze(1) if mask.dim() == 3 else mask


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was written to; 0 for one of inference mode, which does not count."""
    return 0 if tensor.is_inference() else tensor._version


def _four(tensor: torch.Tensor) -> torch.Tensor:
    """[N, heads, length, features], which is what the fused kernels take: three dimensions are N of one head."""
    return tensor if tensor.dim() == 4 else tensor.unsqueeze(1)


def _hides_a_row(mask: torch.Tensor) -> bool:
    """Whether all of a row is hidden. Kernels keep a row's sum as a logarithm, which does not tell there how many places share
    it: their gradients would be wrong. A fake mask counts as one that hides no row."""
    open_rows = mask.any(-1) if mask.dtype == torch.bool else mask.amax(-1) > _HIDDEN
    return not isinstance(mask, FakeTensor) and not bool(open_rows.all())


def _covers(mask: torch.Tensor, shape: tuple[int, ...]) -> bool:
    """Whether the mask broadcasts to the scores without making them larger."""
    if mask.dim() > len(shape):
        return False
    return all(size in (1, whole) for size, whole in zip(reversed(mask.shape), reversed(shape), strict=False))


def _hides(fill: float, dtype: torch.dtype) -> bool:
    """Whether what is filled weighs nothing beside any score, and all the same where a whole row is filled."""
    return fill == -math.inf or (fill <= _AS_GOOD_AS_INFINITE and dtype != torch.float16)
