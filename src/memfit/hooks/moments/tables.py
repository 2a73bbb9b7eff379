"""The numbers that a code of 8 or 4 bit stands for, and the way from a number to the code of the nearest one.

Sources: dynamic tree quantization, T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (arXiv 2110.02861);
in 4 bit, and why zero is left out, B. Li et al., "Memory Efficient Optimizers with 4-bit States" (arXiv 2309.01507). The levels
of 8 bit are those of bitsandbytes and torchao.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

_BUCKETS = 1 << 16  # by the upper 16 bit of a float32: sign, exponent and 7 bit of its fraction


@dataclass(frozen=True)
class Table:
    """`levels`: float32, ascending, one for each code. A float32 in [-1, 1] lies in the bucket of its upper 16 bit, and each
    bucket holds at most one bound between two levels: `codes` (uint8) is the code below that bound, `bounds` (float32) the
    bound. Two look-ups in place of a search, which takes six times as long on a CPU."""

    levels: torch.Tensor
    codes: torch.Tensor
    bounds: torch.Tensor

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """The code (uint8) of the nearest level of each of `values` (float32, one dimension, in [-1, 1])."""
        bucket = values.view(torch.int32).bitwise_right_shift(16).bitwise_and_(_BUCKETS - 1)
        above = values >= self.bounds.index_select(0, bucket)
        return self.codes.index_select(0, bucket).add_(above.view(torch.uint8))

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """The level (float32) of each code (uint8, one dimension)."""
        return self.levels.index_select(0, codes.int())


def dynamic_levels(signed: bool, exponent_bits: int, bits: int) -> list[float]:
    """A decade for each exponent, the finer the larger; zero and one. With `signed` each has its negative."""
    fraction_bits = bits - 1 - exponent_bits if signed else bits - exponent_bits
    levels = [0.0, 1.0]
    for exponent in range(exponent_bits):
        steps = 2 ** (exponent + fraction_bits)
        decade = 10.0 ** (exponent - exponent_bits + 1)
        for step in range(steps):
            middle = decade * (0.1 + 0.9 * (step + 0.5) / steps)
            levels += [middle, -middle] if signed else [middle]
    return sorted(levels)


def above_zero(levels: list[float]) -> list[float]:
    """Half of the smallest in place of zero: a second moment of zero would make an update much too large."""
    return [levels[1] / 2, *levels[1:]]


@lru_cache(maxsize=16)
def table(levels: tuple[float, ...], device: torch.device) -> Table:
    """The table of these levels, kept for the process; real also where tensors that are made are fake."""
    with unset_fake_temporarily(), torch.no_grad():
        known = torch.tensor(levels, dtype=torch.float32)
        bounds = (known[1:] + known[:-1]) / 2
        upper = torch.arange(_BUCKETS, dtype=torch.int64)
        least = torch.where(upper < _BUCKETS // 2, upper << 16, (upper << 16 | 0xFFFF) - (1 << 32))  # of the bucket
        below = torch.bucketize(least.to(torch.int32).view(torch.float32), bounds, right=True)
        ends = torch.cat([bounds, torch.tensor([torch.inf])])[below]
        return Table(known.to(device), below.to(torch.uint8).to(device), ends.to(device))
