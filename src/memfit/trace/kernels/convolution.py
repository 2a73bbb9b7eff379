"""Convolutions through oneDNN, and the few that go through im2col.

On contiguous (NCHW) tensors oneDNN works in its own layouts: it copies input and weight into them, computes into an
output of its own, and the result is copied back. Measured on 420 convolutions of torchvision's models (fp32 and bf16,
two threads): forward exact but for rounding, backward within 5 % on nine of ten; the rest are strided convolutions of
images, whose gradient nobody needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from memfit.trace.kernels.sizes import nbytes, padded, product, threads

aten: Any = torch.ops.aten
_REDUCED = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Blocks:
    """A convolution in oneDNN's layouts: bytes of the copies of input, weight, output and of a strided 1x1's gather."""

    source: int
    weight: int
    output: int
    gather: int
    itemsize: int
    depthwise: bool
    strided: bool
    amx: bool


def _blocks(x: Any, weight: Any, y_shape: Any, stride: Any, groups: int) -> _Blocks:
    samples, channels, *image = x.shape
    out_channels, group_channels, *kernel = weight.shape
    itemsize = x.element_size()
    depthwise = groups > 1 and groups == channels == out_channels
    block = 16 if _avx512() else 8
    amx = x.dtype in _REDUCED and _amx() and not depthwise
    pad = block if (groups == 1 or depthwise) and not amx else 1
    first = channels <= 4 and groups == 1  # an image is read as it is
    strided = max(stride) > 1
    y_elements, window = product(y_shape[2:]), product(kernel)
    if depthwise:
        weight_elements = padded(groups, block) * window
    elif first:
        weight_elements = padded(out_channels, block) * group_channels * window
    else:
        weight_elements = padded(out_channels, pad) * padded(group_channels, pad if groups == 1 else 1) * window
    gather = threads() * channels * y_elements * itemsize + 128 if strided and window == 1 and not amx else 0
    return _Blocks(
        source=0 if first and not amx else samples * padded(channels, pad) * product(image) * itemsize,
        weight=weight_elements * itemsize,
        output=samples * padded(out_channels, pad) * y_elements * itemsize,
        gather=gather, itemsize=itemsize, depthwise=depthwise, strided=strided, amx=amx)


def forward(args: Any, kwargs: Any, out: Any) -> int:
    """Scratch of `aten.convolution`: the copies, then the output twice."""
    x, weight, _, stride, padding, dilation, transposed, _, groups = args
    if not _through_onednn(x, weight, stride, dilation, groups):
        return 0 if _is_pointwise(weight, stride, padding) else _columns(x, weight, out.shape, groups)
    if _channels_last(x, weight):
        return nbytes(weight)
    blocks = _transposed(x, weight, out, stride, groups) if transposed else _blocks(x, weight, out.shape, stride, groups)
    copies = _input_copy(x)
    buffer = blocks.gather + (_accumulators(weight) if blocks.amx else 0)
    computing = blocks.source + blocks.weight + blocks.output + buffer
    copying_back = blocks.output + nbytes(out) * (2 if blocks.amx or transposed else 1)
    return copies + max(computing, copying_back) - nbytes(out)


def backward(args: Any, kwargs: Any, out: Any) -> int:
    """Scratch of `aten.convolution_backward`: first the input's gradient, then the weight's."""
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, mask = args
    if not _through_onednn(x, weight, stride, dilation, groups):
        return 0 if _is_pointwise(weight, stride, padding) else _columns(x, weight, grad.shape, groups)
    left = sum(nbytes(t) for t in out if t is not None)
    if _channels_last(x, weight):
        return nbytes(weight) + _reduction(grad, x, weight, stride, groups, nbytes(weight))
    if transposed:
        blocks = _transposed(x, weight, grad, stride, groups)
    else:
        blocks = _blocks(x, weight, grad.shape, stride, groups)
    peak = left
    if mask[0]:
        peak = max(peak, _data_peak(blocks, x, weight, grad, groups, transposed))
    if mask[1]:
        before = nbytes(x) if mask[0] else 0
        peak = max(peak, before + _weight_peak(blocks, grad, x, weight, stride, groups))
    return _input_copy(grad) + _input_copy(x) + peak - left


def _data_peak(blocks: _Blocks, x: Any, weight: Any, grad: Any, groups: int, transposed: bool) -> int:
    group_channels = weight.shape[1]
    copied_twice = blocks.amx or (
        blocks.strided and not blocks.depthwise and (groups == 1 or group_channels > 16 or group_channels % 8 > 0))
    buffer = 16384 * threads() * grad.shape[-1] + 28720 if copied_twice and not blocks.amx else 0
    if blocks.amx:
        buffer = _accumulators(weight)
    computing = blocks.output + blocks.weight + blocks.source + buffer
    return max(computing, blocks.source + nbytes(x) * (2 if copied_twice and not transposed else 1))


def _weight_peak(blocks: _Blocks, grad: Any, x: Any, weight: Any, stride: Any, groups: int) -> int:
    kernel = max(weight.shape[2:])
    if not blocks.amx and groups > 1 and (kernel > 3 if blocks.depthwise else weight.shape[1] < 8):
        return int(9.3 * nbytes(weight))  # by im2col, reading the plain tensors
    if blocks.amx:
        images = (nbytes(x) + nbytes(grad)) // x.shape[0]
        buffer = threads() * (2 * blocks.weight + int(0.8 * images))
    else:
        buffer = _reduction(grad, x, weight, stride, groups, blocks.weight) + blocks.gather
    return max(blocks.output + blocks.source + blocks.weight + buffer, blocks.weight + nbytes(weight))


def _reduction(grad: Any, x: Any, weight: Any, stride: Any, groups: int, weight_bytes: int) -> int:
    """Partial weight gradients, one for each thread that the samples are divided among: oneDNN's own cost model."""
    total = threads()
    if total < groups:
        return 0
    total //= groups
    block = 16
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
    return weight_bytes * (chosen - 1)


def _transposed(x: Any, weight: Any, y: Any, stride: Any, groups: int) -> _Blocks:
    """A transposed convolution is the gradient of the plain one: output and input change places."""
    swapped = _blocks(y, weight, x.shape, stride, groups)
    return _Blocks(swapped.output, swapped.weight, swapped.source, 0, swapped.itemsize, swapped.depthwise, False, swapped.amx)


def _through_onednn(x: Any, weight: Any, stride: Any, dilation: Any, groups: int) -> bool:
    """The library's own choice for CPU tensors (`use_mkldnn` of its convolution)."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    if x.dtype in _REDUCED:
        return _avx512()
    if x.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    kernel = weight.shape[2:]
    wide = len(kernel) > 1 and min(kernel[-2:]) > 3
    worth = max(stride) > 1 or max(dilation) > 1 or x.shape[0] >= 16 or max(kernel) > 1 or threads() > 1
    return worth and (groups > 1 or wide or x.shape[0] > 1 or x.numel() > 20480)


def _columns(x: Any, weight: Any, y_shape: Any, groups: int) -> int:
    return x.shape[0] * x.shape[1] * product(weight.shape[2:]) * product(y_shape[2:]) * x.element_size()


def _is_pointwise(weight: Any, stride: Any, padding: Any) -> bool:
    return max(weight.shape[2:]) == 1 and max(stride) == 1 and max(padding) == 0


def _input_copy(x: Any) -> int:
    return 0 if x.is_contiguous() else nbytes(x)


def _channels_last(x: Any, weight: Any) -> bool:
    """Whether the call works on channels-last tensors as they are."""
    if x.dim() != 4:
        return False
    return any(t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in (x, weight))


def _accumulators(weight: Any) -> int:
    return 16384 * threads() * max(1, product(weight.shape[2:])) // 2 + 48


def _avx512() -> bool:
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


def _amx() -> bool:
    probe = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(probe and probe())


SCRATCH = {aten.convolution.default: forward, aten.convolution_backward.default: backward}
