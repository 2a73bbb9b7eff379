"""Ways to hold a flat tensor in fewer bytes. They work a stretch at a time, so that what they make on the way stays small.

Blocks with a least number and a step each: J. Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit Activation
Compressed Training" (arXiv 2104.14129); X. Liu et al., "GACT" (arXiv 2206.11357).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

BLOCKS = {8: 256, 4: 64}  # numbers that share a step, by bits
_LEAST_STRETCH = 1 << 17  # elements; with their temporaries they fit into a processor's caches
_PARTS = 32  # a tensor goes in so many stretches at most
_UNIT = 256  # a multiple of every block, and of the elements of a byte
_TOGETHER = 0x0102040810204080  # times eight bytes of 0 or 1: their bits are in the highest byte
_EVERYWHERE = 0x0101010101010101  # times a byte: it is in all eight
_OWN_BIT = 0x8040201008040201 - (1 << 64)  # of each byte, the bit that has its number
Test = Callable[[torch.Tensor], torch.Tensor]


def pack_bits(flat: torch.Tensor, test: Test) -> torch.Tensor:
    """Whether `test` (giving bool) holds for each element, eight to a byte (uint8)."""
    bits = flat.new_empty(-(-flat.numel() // 8), dtype=torch.uint8)
    for start, stop in _stretches(flat.numel()):
        mask = test(flat[start:stop])
        lacking = -mask.numel() % 8
        words = (F.pad(mask, (0, lacking)) if lacking else mask).view(torch.int64)
        bits[start // 8 : -(-stop // 8)].copy_((words * _TOGETHER).bitwise_right_shift_(56))
    return bits


def unpack_bits(bits: torch.Tensor, count: int, dtype: torch.dtype, inside: float = 1.0, outside: float = 0.0) -> torch.Tensor:
    """`count` numbers of `dtype`: `inside` where the bit is set, else `outside`."""
    out = bits.new_empty(count, dtype=dtype)
    for start, stop in _stretches(count):
        words = bits[start // 8 : -(-stop // 8)].to(torch.int64).mul_(_EVERYWHERE).bitwise_and_(_OWN_BIT)
        into = out[start:stop].copy_(words.view(torch.uint8)[: stop - start].ne(0))
        if (inside, outside) != (1.0, 0.0):
            into.mul_(inside - outside).add_(outside)
    return out


def pack_blocks(flat: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes (uint8; two to a byte with 4 bits), and each block's least number and step (float32).

    The nearest code is taken: a number comes back within half a step, and a step is the block's range over `2**bits - 1`.
    """
    block, count = BLOCKS[bits], flat.numel()
    rows = -(-count // block)
    codes = flat.new_empty(rows * block * bits // 8, dtype=torch.uint8)
    least, step = flat.new_empty(2, rows, dtype=torch.float32).unbind()
    for start, stop in _stretches(count):
        values = flat[start:stop].float()
        lacking = -values.numel() % block
        values = (F.pad(values, (0, lacking)) if lacking else values).view(-1, block)
        first, last = start // block, -(-stop // block)
        low, high = values.amin(1), values.amax(1)
        least[first:last] = low
        step[first:last] = high.sub_(low).div_(2**bits - 1)
        per_step = step[first:last].reciprocal().nan_to_num_(0.0, 0.0).unsqueeze(1)  # of equal numbers, all have code 0
        code = values.sub(low.unsqueeze(1)).mul_(per_step).add_(0.5).to(torch.uint8).view(-1)
        if bits == 4:
            pairs = code.view(torch.int16)
            code = pairs.bitwise_right_shift(4).bitwise_or_(pairs)
        codes[first * block * bits // 8 : last * block * bits // 8].copy_(code)
    return codes, least, step


def unpack_blocks(
    codes: torch.Tensor, least: torch.Tensor, step: torch.Tensor, bits: int, count: int, dtype: torch.dtype
) -> torch.Tensor:
    """`count` numbers of `dtype`."""
    block = BLOCKS[bits]
    out = codes.new_empty(count, dtype=dtype)
    for start, stop in _stretches(count):
        first, last = start // block, -(-stop // block)
        code = codes[first * block * bits // 8 : last * block * bits // 8]
        if bits == 4:
            pairs = code.to(torch.int16)
            code = pairs.bitwise_left_shift(4).bitwise_or_(pairs).bitwise_and_(0x0F0F).view(torch.uint8)
        values = code.float().view(-1, block).mul_(step[first:last].unsqueeze(1)).add_(least[first:last].unsqueeze(1))
        out[start:stop].copy_(values.view(-1)[: stop - start])
    return out


def narrowest(low: int, high: int) -> torch.dtype | None:
    """The smallest integer type that holds `low` to `high`; None where that is int64."""
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        limits = torch.iinfo(dtype)
        if limits.min <= low and high <= limits.max:
            return dtype
    return None


def _stretches(count: int) -> Iterator[tuple[int, int]]:
    length = max(_LEAST_STRETCH, -(-count // _PARTS // _UNIT) * _UNIT)
    for start in range(0, count, length):
        yield start, min(start + length, count)
