"""Convolutions through oneDNN, and the few that go through im2col.

On contiguous (NCHW) tensors oneDNN works in its own layouts: it copies input and weight into them, computes into an
output of its own, and the result is copied back. On channels-last tensors it works in place but for the weight.
Measured on 420 convolutions of torchvision's models (fp32 and bf16) with 1, 2 and 4 threads: forward exact but for
rounding, backward within 5 % on nine of ten; the rest are strided convolutions of images, whose gradient nobody needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from memfit.trace.kernels.sizes import copy_bytes, nbytes, padded, product, threads

aten: Any = torch.ops.aten
_REDUCED = (torch.bfloat16, torch.float16)
_LARGEST_DIRECT = 14  # a wider window is gathered into columns


@dataclass(frozen=True)
class _Layouts:
    """A convolution in oneDNN's layouts: bytes of its input, weight and output, and of a strided 1x1's gather."""

    x: int
    weight: int
    y: int
    gather: int
    depthwise: bool
    strided: bool
    amx: bool


def forward(args: Any, kwargs: Any, out: Any) -> int:
    """Scratch of `aten.convolution`: the copies, then the output twice."""
    x, weight, _, stride, padding, dilation, transposed, _, groups = args
    if not _through_onednn(x, weight, stride, dilation, groups):
        return 0 if _is_pointwise(weight, stride, padding) else _columns(x, weight, out.shape)
    if _channels_last(x, weight):
        return _channels_last_copy(weight) + nbytes(weight) + 6168 * threads()
    layouts = _layouts(x, weight, out, stride, groups, transposed)
    buffer = layouts.gather + (_accumulators(weight) if layouts.amx else 0)
    if layouts.amx and layouts.strided and product(weight.shape[2:]) > 1:
        buffer = int(3.3 * threads() * nbytes(x) / x.shape[0])  # rows of the image, gathered
    twice = layouts.amx or (transposed and layouts.strided)
    if transposed and layouts.strided:
        buffer += 8192 * threads() * _row(x) + 28720
    computing = layouts.x + layouts.weight + layouts.y + buffer
    return copy_bytes(x) + max(computing, layouts.y + nbytes(out) * (2 if twice else 1)) - nbytes(out)


def backward(args: Any, kwargs: Any, out: Any) -> int:
    """Scratch of `aten.convolution_backward`: first the input's gradient, then the weight's."""
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, mask = args
    if not _through_onednn(x, weight, stride, dilation, groups):
        return _columns(x, weight, grad.shape) if mask[1] and not _is_pointwise(weight, stride, padding) else 0
    if _channels_last(x, weight):
        return _channels_last_backward(grad, x, weight, groups, mask)
    layouts = _layouts(x, weight, grad, stride, groups, transposed)
    left = peak = sum(nbytes(t) for t in out if t is not None)
    if mask[0]:
        peak = max(peak, _input_gradient(layouts, grad, x, weight, groups, transposed))
    if mask[1]:
        before = nbytes(x) if mask[0] else 0
        peak = max(peak, before + _weight_gradient(layouts, grad, x, weight, stride, groups))
    return copy_bytes(grad) + copy_bytes(x) + peak - left


def _layouts(x: Any, weight: Any, y: Any, stride: Any, groups: int, transposed: bool) -> _Layouts:
    if transposed:  # the gradient of a plain one: input and output change places
        plain = _layouts(y, weight, x, stride, groups, False)
        return _Layouts(plain.y, plain.weight, plain.x, 0, plain.depthwise, plain.strided, plain.amx)
    itemsize, channels, (outputs, group_channels, *kernel) = x.element_size(), x.shape[1], weight.shape
    depthwise = groups > 1 and groups == channels == outputs
    amx = x.dtype in _REDUCED and has_amx() and not depthwise
    block = 16 if has_avx512() else 8
    pad = block if (groups == 1 or depthwise) and not amx else 1
    image = channels <= 4 and groups == 1 and not amx  # read as it is
    if depthwise:
        weights = padded(groups, block)
    else:
        weights = padded(outputs, pad) * (group_channels if image or groups > 1 else padded(group_channels, pad))
    strided, window, positions = max(stride) > 1, product(kernel), product(y.shape[2:])
    gather = threads() * channels * positions * itemsize + 128 if strided and window == 1 and not amx else 0
    return _Layouts(
        x=0 if image else x.shape[0] * padded(channels, pad) * product(x.shape[2:]) * itemsize,
        weight=weights * window * itemsize,
        y=x.shape[0] * padded(outputs, pad) * positions * itemsize,
        gather=gather, depthwise=depthwise, strided=strided, amx=amx)


def _input_gradient(layouts: _Layouts, grad: Any, x: Any, weight: Any, groups: int, transposed: bool) -> int:
    group_channels = weight.shape[1]
    blocked = layouts.depthwise or (groups > 1 and group_channels in (8, 16))
    reduced_depthwise = layouts.depthwise and x.dtype in _REDUCED
    twice = layouts.amx or (layouts.strided and (reduced_depthwise or not blocked) and not transposed)
    buffer = 0
    if layouts.amx:
        buffer = _accumulators(weight)
    elif twice:
        buffer = 16384 * threads() * _row(grad) + 28720
    computing = layouts.y + layouts.weight + layouts.x + buffer
    return max(computing, layouts.x + nbytes(x) * (2 if twice else 1))


def _weight_gradient(layouts: _Layouts, grad: Any, x: Any, weight: Any, stride: Any, groups: int) -> int:
    largest = max(weight.shape[2:])
    small_groups = groups > 1 and (largest > 3 if layouts.depthwise else weight.shape[1] < 8)
    if not layouts.amx and (largest > _LARGEST_DIRECT or small_groups):
        return nbytes(weight) + _by_columns(grad, weight, groups)
    if layouts.amx:
        packed = nbytes(weight) // (weight.shape[0] * weight.shape[1])
        packed *= padded(weight.shape[0], 16) * padded(weight.shape[1], 32)
        parts = _sample_groups(grad, x, weight, stride, groups)
        if product(weight.shape[2:]) == 1:  # few outputs: the threads divide the samples
            parts = min(threads(), x.shape[0]) if weight.shape[0] <= 256 or weight.shape[0] % 64 else 1
        sums = 2 * packed * parts  # in fp32
        image = nbytes(x) / x.shape[0]
        if x.shape[1] <= 4:
            image *= 32 / x.shape[1] * (2 if largest > _LARGEST_DIRECT else 0.75)
        buffer = sums + packed - layouts.weight + int(0.6 * threads() * (image + nbytes(grad) / x.shape[0]))
    else:
        buffer = layouts.weight * (_sample_groups(grad, x, weight, stride, groups) - 1) + layouts.gather
    return max(layouts.y + layouts.x + layouts.weight + buffer, layouts.weight + nbytes(weight))


def _by_columns(grad: Any, weight: Any, groups: int) -> int:
    """Columns of one image and four partial gradients, for each thread that takes part."""
    window, positions = product(weight.shape[1:]), product(grad.shape[2:])
    columns = window * positions * weight.element_size()
    workers = threads() if window >= 256 or positions <= 400 or threads() > 2 else 1
    return min(workers, grad.shape[0] * groups) * (4 * nbytes(weight) + columns + 256)


def _sample_groups(grad: Any, x: Any, weight: Any, stride: Any, groups: int) -> int:
    """Into how many parts the samples are divided, each with a weight gradient of its own: oneDNN's cost model."""
    if threads() < groups:
        return 1
    total, block = threads() // groups, 16
    inner, outer = (padded(side // groups, block) // block for side in (x.shape[1], weight.shape[0]))
    samples = x.shape[0]
    image = block * product(x.shape[2:]) // product(stride)
    result = block * product(grad.shape[2:])
    tile = 8 * block * block * product(weight.shape[2:])

    def cost(by_sample: int, by_outer: int, by_inner: int) -> int:
        parts = -(-samples // by_sample), -(-outer // by_outer), -(-inner // by_inner)
        return parts[0] * parts[2] * image + parts[0] * parts[1] * result + parts[1] * parts[2] * tile

    best, chosen = cost(1, 1, 1), 1
    for by_sample in range(1, min(total, samples) + 1):
        rest = total // by_sample
        for by_outer in range(1, min(rest, outer) + 1):
            now = cost(by_sample, by_outer, min(rest // by_outer, inner))
            if now <= best:
                best, chosen = now, by_sample
    return chosen


def _channels_last_backward(grad: Any, x: Any, weight: Any, groups: int, mask: Any) -> int:
    layout = torch.channels_last
    copies = sum(nbytes(t) for t in (grad, x) if not t.is_contiguous(memory_format=layout))
    copy = _channels_last_copy(weight)
    kernel = max(weight.shape[2:])
    wide_depthwise = groups > 1 and groups == x.shape[1] == weight.shape[0] and kernel > 3
    scratch = copy + nbytes(weight) + 6232 * threads()
    if mask[1]:  # the gradient in oneDNN's layout, channels last, and as the weight is
        partial = 256 * nbytes(weight) + nbytes(weight) if wide_depthwise else 2 * nbytes(weight)
        scratch = max(scratch, copy + partial)
    return copies + scratch


def _channels_last_copy(weight: Any) -> int:
    return 0 if weight.is_contiguous(memory_format=torch.channels_last) else nbytes(weight)


def _channels_last(x: Any, weight: Any) -> bool:
    """Whether the call works on channels-last tensors as they are."""
    return x.dim() == 4 and any(
        t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in (x, weight))


def _through_onednn(x: Any, weight: Any, stride: Any, dilation: Any, groups: int) -> bool:
    """The library's own choice for CPU tensors (`use_mkldnn` of its convolution)."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    if x.dtype in _REDUCED:
        return has_avx512()
    if x.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    kernel = weight.shape[2:]
    wide = len(kernel) > 1 and min(kernel[-2:]) > 3
    worth = max(stride) > 1 or max(dilation) > 1 or x.shape[0] >= 16 or max(kernel) > 1 or threads() > 1
    return worth and (groups > 1 or wide or x.shape[0] > 1 or x.numel() > 20480)


def _columns(x: Any, weight: Any, y_shape: Any) -> int:
    return x.shape[0] * x.shape[1] * product(weight.shape[2:]) * product(y_shape[2:]) * x.element_size()


def _is_pointwise(weight: Any, stride: Any, padding: Any) -> bool:
    return max(weight.shape[2:]) == 1 and max(stride) == 1 and max(padding) == 0


def _row(y: Any) -> int:
    """Positions that a strided kernel accumulates at once: an image's row, part of a sequence."""
    return int(y.shape[-1]) if y.dim() > 3 else 1 + int(y.shape[-1]) // 8


def _accumulators(weight: Any) -> int:
    return 8192 * threads() * product(weight.shape[2:]) + 48


def has_avx512() -> bool:
    """Whether this processor's kernels use 512-bit vectors: blocks of 16 channels, bf16 through oneDNN."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def has_amx() -> bool:
    """Whether bf16 products run on tiles."""
    probe = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(probe and probe())


SCRATCH = {aten.convolution.default: forward, aten.convolution_backward.default: backward}
