"""Convolutions on a card: which go to cuDNN, what those take, and in which order a backward allocates.

After aten/src/ATen/native/Convolution.cpp, native/cudnn/ConvShared.cpp and Conv_v8.cpp. The choice of kernel follows their
rules; sizes of workspaces are cuDNN's own answers (`memfit.hardware.cudnn`), tensors copied into another layout go on top.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.hardware.cudnn import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, ConvolutionCall, convolution_workspace
from memfit.trace.cuda.depthwise import through_cudnn as depthwise_through_cudnn
from memfit.trace.cuda.libraries import card_of, cudnn_version, flags
from memfit.trace.cuda.sizes import Elastic, Taken
from memfit.trace.cuda.target import CudaTarget
from memfit.trace.kernels.sizes import nbytes

aten: Any = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
_NO_HALF_CONV3D = range(90800, 91500)  # pytorch#166790: the library's kernels were found wrong


@dataclass(frozen=True)
class Layer:
    """A convolution's settings, one number a spatial side."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @staticmethod
    def of(spatial: int, values: Sequence[Any]) -> Layer:
        """From the arguments of `aten.convolution` that follow the bias."""
        def sides(given: Sequence[int]) -> tuple[int, ...]:
            return tuple(given) if len(given) == spatial else tuple(given) * spatial

        stride, padding, dilation, transposed, output_padding, groups = values
        return Layer(sides(stride), sides(padding), sides(dilation), bool(transposed), sides(output_padding), int(groups))


def forward(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> Taken:
    """Scratch of `aten.convolution`: copies into the kernel's layout, then the workspace."""
    x, weight = args[:2]
    layer = Layer.of(x.dim() - 2, args[3:9])
    if not through_cudnn(x, weight, layer, target):
        return _native(x, weight, out, layer)
    last = channels_last(x, weight)
    direction = BACKWARD_DATA if layer.transposed else FORWARD
    copies = _copy(x, last) + _copy(weight, last)
    return _with(copies, _workspace(direction, x, weight, out, layer, last, target))


def backward(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> Taken:
    """Scratch of `aten.convolution_backward` for one gradient; a call for more is recorded in parts."""
    grad, x, weight = args[:3]
    layer, mask = Layer.of(x.dim() - 2, args[4:10]), args[10]
    if not through_cudnn(x, weight, layer, target):
        return _native(x, weight, grad, layer) if mask[0] or mask[1] else 0
    last = channels_last(x, weight)
    if mask[0]:
        direction = FORWARD if layer.transposed else BACKWARD_DATA
        copies = _copy(grad, last) + _copy(weight, last)
    elif mask[1]:
        direction = BACKWARD_WEIGHT
        copies = _copy(grad, last) + _copy(x, last)
    else:
        return 0
    return _with(copies, _workspace(direction, x, weight, grad, layer, last, target))


def backward_in_parts(args: Any, kwargs: Any) -> Any:
    """The gradients one after the other, as the library makes them (input, weight, then the bias as a sum over the
    gradient), for a call that asks for more than one; None for one that does not."""
    grad, mask = args[0], args[10]
    if sum(map(bool, mask)) < 2 and not mask[2]:
        return None
    one = aten.convolution_backward.default
    d_input = one(*args[:10], [True, False, False])[0] if mask[0] else None
    d_weight = one(*args[:10], [False, True, False])[1] if mask[1] else None
    sides = [side for side in range(grad.dim()) if side != 1]
    return d_input, d_weight, aten.sum.dim_IntList(grad, sides) if mask[2] else None


def through_cudnn(x: Any, weight: Any, layer: Layer, target: CudaTarget) -> bool:
    """Whether the call goes to cuDNN (`use_cudnn` and `use_cudnn_depthwise`)."""
    if not flags().enabled or x.dim() not in _LAYOUTS or not x.numel() or x.dtype not in (*_HALF, torch.float32, torch.float64):
        return False
    if x.dtype is torch.bfloat16 and target.compute_capability < (8, 0):
        return False
    if layer.transposed and any(p >= s for p, s in zip(layer.output_padding, layer.stride, strict=True)):
        return False
    if _half_conv3d_avoided(x, weight, target):
        return False
    if _is_depthwise(x, weight, layer):
        return channels_last(x, weight) or depthwise_through_cudnn(x, weight, layer.stride, layer.dilation)
    return True


def channels_last(x: Any, weight: Any) -> bool:
    """Whether the library works on channels-last tensors: one of the two is (doubles never are)."""
    return x.dtype is not torch.float64 and (_is_last(x) or _is_last(weight))


def _is_depthwise(x: Any, weight: Any, layer: Layer) -> bool:
    return not layer.transposed and layer.groups > 1 and x.shape[1] == layer.groups and weight.shape[0] % x.shape[1] == 0


def _half_conv3d_avoided(x: Any, weight: Any, target: CudaTarget) -> bool:
    return (x.dim() == 5 and x.dtype in _HALF and target.torch_version >= (2, 9) and max(weight.shape[2:]) > 1
            and not channels_last(x, weight) and cudnn_version(target) in _NO_HALF_CONV3D)


def _native(x: Any, weight: Any, result: Any, layer: Layer) -> int:
    """torch's own kernels: none for depthwise ones, else one sample's windows as columns."""
    if _is_depthwise(x, weight, layer) or x.dim() not in _LAYOUTS:
        return 0
    image = x if layer.transposed else result  # positions at which the kernel stands
    return math.prod(weight.shape[1:]) * layer.groups * math.prod(image.shape[2:]) * x.element_size()


def _workspace(direction: str, x: Any, weight: Any, result: Any, layer: Layer, last: bool, target: CudaTarget) -> Elastic:
    """`x` and `result` as the layer has them; the library calls a transposed layer's result its input."""
    set_as = flags()
    inside, outside = (result, x) if layer.transposed else (x, result)
    call = ConvolutionCall(
        direction, str(x.dtype)[6:], tuple(inside.shape), tuple(weight.shape), tuple(outside.shape), layer.stride,
        layer.padding, layer.dilation, last, set_as.allow_tf32, set_as.deterministic)
    found = convolution_workspace(call, card_of(target), cudnn_version(target), benchmark=set_as.benchmark)
    return Elastic(found.low_bytes, found.typical_bytes, found.high_bytes)


def _with(copies: int, workspace: Elastic) -> Elastic:
    return Elastic(*(copies + size for size in workspace))


def _copy(tensor: Any, last: bool) -> int:
    fits = tensor.is_contiguous(memory_format=_LAYOUTS[tensor.dim()]) if last else tensor.is_contiguous()
    return 0 if fits else nbytes(tensor)


def _is_last(tensor: Any) -> bool:
    layout = _LAYOUTS[tensor.dim()]
    return tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous()


SCRATCH: dict[Any, Callable[..., Taken]] = {
    aten.convolution.default: forward,
    aten.convolution_backward.default: backward,
}
PARTS: dict[Any, Callable[[Any, Any], Any]] = {aten.convolution_backward.default: backward_in_parts}
