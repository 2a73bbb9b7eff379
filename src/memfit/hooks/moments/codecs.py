"""Ways to hold a moment (a float32 tensor, flat) in fewer bytes. A codec is told which stretch of it to read or to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import functional as F

from memfit.hooks.moments.tables import above_zero, dynamic_levels, table

Parts = Mapping[str, torch.Tensor]
_LEAST = torch.finfo(torch.float32).tiny  # a block of zeros has some scale


class Codec(Protocol):
    """`dtypes`: the parts that hold a moment, by the ending of their key in an optimizer's state. Stretches start at a
    multiple of `block`, and end at one or at the end of the moment."""

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]: ...

    @property
    def block(self) -> int: ...

    def prepare(self, device: torch.device) -> None:
        """Make what all moments on the device share, before a step is counted."""
        ...

    def zeros(self, like: torch.Tensor) -> dict[str, torch.Tensor]:
        """A moment of zeros for a parameter `like`."""
        ...

    def read(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        """The moment's numbers `[start, stop)`, as float32; the result is the caller's."""
        ...

    def write(self, parts: Parts, start: int, stop: int, values: torch.Tensor, noise: torch.Tensor | None) -> None:
        """Replace the numbers `[start, stop)`. `values` (float32, contiguous) are used up; `noise` (int32, 0 to 65535, of any
        length) is what one that rounds at random adds below its last bit."""
        ...


@dataclass(frozen=True)
class Levels:
    """Blocks of `block` numbers, each divided by its largest (float32, kept) and coded by the nearest of `levels`; 16 levels
    pack into half a byte."""

    levels: tuple[float, ...]
    block: int

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        return {"codes": torch.uint8, "scale": torch.float32}

    @property
    def packed(self) -> int:
        """Numbers in a byte."""
        return 2 if len(self.levels) <= 16 else 1

    def prepare(self, device: torch.device) -> None:
        table(self.levels, device)

    def zeros(self, like: torch.Tensor) -> dict[str, torch.Tensor]:
        return _block_zeros(like, self.block, self.packed)

    def read(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        codes, scale = _stretch(parts, start, stop, self.block, self.packed)
        if self.packed == 2:
            codes = torch.stack((codes >> 4, codes & 15), dim=1).view(-1)
        values = table(self.levels, codes.device).decode(codes)
        values.view(-1, self.block).mul_(scale.unsqueeze(1))
        return values[: stop - start]

    def write(self, parts: Parts, start: int, stop: int, values: torch.Tensor, noise: torch.Tensor | None) -> None:
        into, scale = _stretch(parts, start, stop, self.block, self.packed)
        values = _scaled(values, scale, self.block, 1.0)
        codes = table(self.levels, values.device).encode(values)
        if self.packed == 2:
            pairs = codes.view(-1, 2)
            codes = (pairs[:, 0] << 4).add_(pairs[:, 1])
        into.copy_(codes)


@dataclass(frozen=True)
class Float8:
    """Blocks divided so that the largest number is float8's largest, and cast to float8 (e4m3)."""

    block: int

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        return {"codes": torch.uint8, "scale": torch.float32}  # float8 tensors cannot be pickled

    def prepare(self, device: torch.device) -> None:
        table(_float8_numbers(), device)

    def zeros(self, like: torch.Tensor) -> dict[str, torch.Tensor]:
        return _block_zeros(like, self.block, 1)

    def read(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        codes, scale = _stretch(parts, start, stop, self.block, 1)
        values = table(_float8_numbers(), codes.device).decode(codes)
        values.view(-1, self.block).mul_(scale.unsqueeze(1))
        return values[: stop - start]

    def write(self, parts: Parts, start: int, stop: int, values: torch.Tensor, noise: torch.Tensor | None) -> None:
        into, scale = _stretch(parts, start, stop, self.block, 1)
        values = _scaled(values, scale, self.block, torch.finfo(torch.float8_e4m3fn).max)
        into.copy_(values.to(torch.float8_e4m3fn).view(torch.uint8))


@dataclass(frozen=True)
class BFloat16:
    """bfloat16, rounded up or down at random, so that the mean is right: small steps would be lost otherwise
    (P. Zamirai et al., "Revisiting BFloat16 Training", arXiv 2010.06192)."""

    block: int = 1

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        return {"": torch.bfloat16}

    def prepare(self, device: torch.device) -> None:
        """Nothing."""

    def zeros(self, like: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"": torch.zeros_like(like, dtype=torch.bfloat16, memory_format=torch.contiguous_format)}

    def read(self, parts: Parts, start: int, stop: int) -> torch.Tensor:
        return parts[""].view(-1)[start:stop].float()

    def write(self, parts: Parts, start: int, stop: int, values: torch.Tensor, noise: torch.Tensor | None) -> None:
        into = parts[""].view(-1)[start:stop]
        if noise is None:
            into.copy_(values)
            return
        bits = values.view(torch.int32)
        whole = len(bits) // len(noise) * len(noise)
        bits[:whole].view(-1, len(noise)).add_(noise)
        bits[whole:].add_(noise[: len(bits) - whole])
        into.view(torch.int16).copy_(bits.bitwise_right_shift_(16))


def _block_zeros(like: torch.Tensor, block: int, packed: int) -> dict[str, torch.Tensor]:
    blocks = -(-like.numel() // block)
    return {"codes": like.new_zeros(blocks * block // packed, dtype=torch.uint8),
            "scale": like.new_zeros(blocks, dtype=torch.float32)}


def _stretch(parts: Parts, start: int, stop: int, block: int, packed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the whole blocks that hold the numbers `[start, stop)`."""
    first, last = start // block, -(-stop // block)
    return parts["codes"][first * block // packed : last * block // packed], parts["scale"][first:last]


@lru_cache(maxsize=1)
def _float8_numbers() -> tuple[float, ...]:
    """What each byte is as a float8; its two that are no numbers come out as such."""
    with unset_fake_temporarily():
        return tuple(torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float().tolist())


def _scaled(values: torch.Tensor, scale: torch.Tensor, block: int, largest: float) -> torch.Tensor:
    """`values`, filled up to whole blocks, divided by `scale`, which becomes each block's largest over `largest`."""
    lacking = -values.numel() % block
    values = F.pad(values, (0, lacking)) if lacking else values
    rows = values.view(-1, block)
    scale.copy_(rows.abs().amax(1).div_(largest).clamp_(min=_LEAST))
    rows.div_(scale.unsqueeze(1))
    return values


EIGHT_BIT = (Levels(tuple(dynamic_levels(True, 7, 8)), 256), Levels(tuple(dynamic_levels(False, 7, 8)), 256))
FOUR_BIT = (Levels(tuple(dynamic_levels(True, 3, 4)), 128), Levels(tuple(above_zero(dynamic_levels(False, 3, 4))), 128))
FLOAT_8 = (Float8(256), Float8(256))
B_FLOAT_16 = (BFloat16(), BFloat16())
