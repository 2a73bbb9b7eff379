"""Buffers of reductions that are shared out over several blocks for each output.

The split follows `setReduceConfig` in `aten/src/ATen/native/cuda/Reduce.cuh`; it is confirmed by recorded allocations of
sums over 512 to 2048 rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.trace.cuda.target import CudaTarget

aten: Any = torch.ops.aten
_MOST_THREADS, _WARP = 512, 32
_LEAST_VALUES, _MOST_VALUES = 16, 256
_VECTOR = 4
Side = tuple[int, int]  # size, stride in elements


@dataclass
class _Split:
    """How many inputs and outputs one step of the grid covers."""

    inputs: int
    outputs: int
    step_input: int = 1
    step_output: int = 1

    def values(self) -> int:
        return -(-self.inputs // self.step_input)


def reduction_buffers(x: torch.Tensor, dims: Sequence[int] | None, target: CudaTarget) -> tuple[int, ...]:
    """Bytes of partial results and of the counters beside them; nothing where one block does an output alone."""
    if not x.numel():
        return ()
    wanted = {dim % x.dim() for dim in dims} if dims and x.dim() else set(range(x.dim()))
    sides = [(size, stride) for size, stride in zip(x.shape, x.stride(), strict=True)]
    reduced = _merged([side for dim, side in enumerate(sides) if dim in wanted and side[0] > 1])
    kept = _merged([side for dim, side in enumerate(sides) if dim not in wanted and side[0] > 1])
    if not reduced:
        return ()
    accumulated = 4 if x.element_size() < 4 else x.element_size()
    return _buffers(reduced, kept, accumulated, target)


def _buffers(reduced: list[Side], kept: list[Side], element: int, target: CudaTarget) -> tuple[int, ...]:
    split = _Split(math.prod(size for size, _ in reduced), math.prod(size for size, _ in kept))
    along = not kept or reduced[0][1] < kept[0][1]
    across = (split.inputs, split.outputs) if along else (split.outputs, split.inputs)
    stride = reduced[0][1] if along else kept[0][1]
    vector = 1
    first, second = across
    if stride == 1 and along and first > 128 and len(reduced) + len(kept) == 1:
        first //= _VECTOR
    elif stride == 1 and not along:
        vector = _output_vector(reduced, kept)
        first //= vector
    width, height = _block(first, second, vector)
    if along:
        split.step_input *= width
    else:
        split.step_output *= width
    over_warps = split.values() >= height * _LEAST_VALUES or split.values() >= _MOST_VALUES
    if over_warps:
        split.step_input *= height
    else:
        split.step_output *= height
    grid = -(-(split.outputs // vector) // split.step_output)
    blocks = _blocks_for_output(split, grid, width * height, target) if over_warps else 1
    if blocks <= 1:
        return ()
    partial = element * split.outputs * blocks * (1 if along else width * vector)
    return partial, 4 * grid


def _blocks_for_output(split: _Split, grid: int, threads: int, target: CudaTarget) -> int:
    wanted = target.multiprocessors * (target.threads // threads)
    if split.values() < _MOST_VALUES or grid > wanted:
        return 1
    values = split.values()
    return max(min(-(-wanted // grid), -(-values // _LEAST_VALUES)), -(-values // _MOST_VALUES))


def _block(first: int, second: int, vector: int) -> tuple[int, int]:
    most = _MOST_THREADS // vector
    wide, high = _power_below(first, most), _power_below(second, most)
    width = min(wide, _WARP)
    height = min(high, most // width)
    return min(wide, most // height), height


def _power_below(count: int, most: int) -> int:
    return most if count >= most else 1 << (max(1, count).bit_length() - 1)


def _output_vector(reduced: list[Side], kept: list[Side]) -> int:
    vector = _VECTOR
    for number in (kept[0][0], *(stride for _, stride in (*reduced, *kept[1:]))):
        while number % vector:
            vector //= 2
    return vector


def _merged(sides: list[Side]) -> list[Side]:
    """Sides by stride, with those that follow each other without a gap made one."""
    merged: list[Side] = []
    for size, stride in sorted(sides, key=lambda side: side[1]):
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return merged


def _whole(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    return reduction_buffers(args[0], None, target)


def _over(place: int) -> Callable[..., tuple[int, ...]]:
    def scratch(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
        dims = args[place] if len(args) > place else kwargs.get("dim")
        return reduction_buffers(args[0], [dims] if isinstance(dims, int) else dims, target)

    return scratch


def _loss(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> int:
    """Each element's loss, before the mean."""
    reduction = args[2] if len(args) > 2 and isinstance(args[2], int) else kwargs.get("reduction", 1)
    return args[0].numel() * args[0].element_size() if reduction else 0


def _logsumexp(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> tuple[int, ...]:
    """The maxima, and the exponentials of what is left."""
    return out.numel() * out.element_size(), args[0].numel() * args[0].element_size()


SCRATCH: dict[Any, Callable[..., Any]] = {
    aten.sum.default: _whole,
    aten.sum.dim_IntList: _over(1),
    aten.mean.default: _whole,
    aten.mean.dim: _over(1),
    aten.prod.default: _whole,
    aten.amax.default: _over(1),
    aten.amin.default: _over(1),
    aten.max.default: _whole,
    aten.min.default: _whole,
    aten.max.dim: _over(1),
    aten.min.dim: _over(1),
    aten.argmax.default: _over(1),
    aten.any.default: _whole,
    aten.all.default: _whole,
    aten.var.correction: _over(1),
    aten.var_mean.correction: _over(1),
    aten.std.correction: _over(1),
    aten.linalg_vector_norm.default: _over(2),
    aten.mse_loss.default: _loss,
    aten.smooth_l1_loss.default: _loss,
    aten.huber_loss.default: _loss,
    aten.logsumexp.default: _logsumexp,
}
