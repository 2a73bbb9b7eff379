"""Formulas of the kernels' scratch memory and corrected results, against the real operators.

Each call runs once for real under the profiler; what it takes above what it leaves is compared with the formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from memfit.trace.kernels import scratch_bytes
from memfit.trace.metas import CORRECTIONS

aten: Any = torch.ops.aten
KIB = 2**10
IMAGE = (8, 32, 28, 28)


def image(*shape: int, last: bool = False) -> torch.Tensor:
    made = torch.randn(*(shape or IMAGE))
    return made.to(memory_format=torch.channels_last) if last else made


def convolution(channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1, last: bool = False) -> tuple[Any, ...]:
    x, weight = image(8, channels, 28, 28, last=last), torch.randn(out, channels // groups, kernel, kernel)
    return x, weight, None, [stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], groups


def backward_of(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    x, weight, _, *rest = arguments
    return torch.randn_like(aten.convolution(*arguments)), x, weight, None, *rest, [True, True, False]


def lstm_arguments() -> tuple[Any, ...]:
    x, state = torch.randn(20, 8, 96), torch.zeros(8, 64)
    weights = torch.randn(256, 96), torch.randn(256, 64), torch.randn(256), torch.randn(256)
    return x, *weights, state, state, False, [], 2, 64, 1, True, False, False, True


def attention(batch: int = 2, heads: int = 4, length: int = 256) -> tuple[Any, ...]:
    return tuple(torch.randn(batch, heads, length, 32) for _ in range(3))


CALLS: dict[str, tuple[Any, Callable[[], tuple[Any, ...]]]] = {
    "convolution": (aten.convolution.default, lambda: convolution(32, 64, 3)),
    "convolution of odd channels": (aten.convolution.default, lambda: convolution(24, 72, 1)),
    "convolution of an image": (aten.convolution.default, lambda: convolution(3, 32, 3, 2)),
    "depthwise convolution": (aten.convolution.default, lambda: convolution(32, 32, 3, groups=32)),
    "convolution, channels last": (aten.convolution.default, lambda: convolution(32, 64, 3, last=True)),
    "convolution backward": (aten.convolution_backward.default, lambda: backward_of(convolution(32, 64, 3))),
    "strided pointwise backward": (aten.convolution_backward.default, lambda: backward_of(convolution(64, 128, 1, 2))),
    "depthwise backward": (aten.convolution_backward.default, lambda: backward_of(convolution(32, 32, 3, groups=32))),
    "channels-last backward": (aten.convolution_backward.default, lambda: backward_of(convolution(32, 64, 3, last=True))),
    "batch norm backward": (aten.native_batch_norm_backward.default, lambda: (
        image(), image(), *(torch.ones(32) for _ in range(5)), True, 1e-5, [True] * 3)),
    "layer norm of a view": (aten.native_layer_norm.default, lambda: (
        torch.randn(64, 128, 256).transpose(0, 1), [256], None, None, 1e-5)),
    "group norm, channels last": (aten.native_group_norm.default, lambda: (
        image(last=True), torch.ones(32), torch.ones(32), 8, 32, 784, 8, 1e-5)),
    "softmax of a view": (aten._softmax.default, lambda: (torch.randn(512, 512).t(), 1, False)),
    "safe softmax": (aten._safe_softmax.default, lambda: (torch.randn(4, 8, 64, 64), -1)),
    "product of an expanded": (aten.mm.default, lambda: (torch.randn(1, 1).expand(512, 512), torch.randn(512, 512))),
    "flash attention": (aten._scaled_dot_product_flash_attention_for_cpu.default, attention),
    "rolled twice": (aten.roll.default, lambda: (image(), [3, 3], [2, 3])),
    "pooling backward, mixed layouts": (aten.avg_pool2d_backward.default, lambda: (
        image(8, 32, 14, 14), image(last=True), [2, 2], [2, 2], [0, 0], False, True, None)),
    "masked select": (aten.masked_select.default, lambda: (image(), image() > 0)),
    "masked select of a few": (aten.masked_select.default, lambda: (image(128, 128), image(128, 128) > 0)),
    "masked select of a view": (aten.masked_select.default, lambda: (image(128, 128).t(), image(128) > 0)),
    "sum of mixed types": (aten.add.Tensor, lambda: (image(), image().bfloat16())),
    "mean of squares": (aten.mse_loss.default, lambda: (image(), image())),
    "columns": (aten.col2im.default, lambda: (torch.randn(8, 72, 676), [28, 28], [3, 3], [1, 1], [0, 0], [1, 1])),
    "logsumexp": (aten.logsumexp.default, lambda: (torch.randn(512, 512), [1])),
    "lstm": (aten.mkldnn_rnn_layer.default, lstm_arguments),
}


def memory_changes(work: Callable[[], Any]) -> tuple[Any, list[int]]:
    """What it gives, and the profiler's memory events in order."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        out = work()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return out, [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


@pytest.mark.parametrize("name", CALLS)
def test_scratch_and_result_are_the_kernels(name: str) -> None:
    func, make = CALLS[name]
    arguments = make()
    func(*arguments)  # what is made once is made now
    out, changes = memory_changes(lambda: func(*arguments))
    running, highest = 0, 0
    for change in changes:
        running += change
        highest = max(highest, running)
    fake = fake_result(func, arguments)
    assert sizes(fake) == sizes(out)
    predicted = running + scratch_bytes(func, arguments, out)
    assert abs(predicted - highest) <= max(0.05 * highest, 16 * KIB), (predicted, highest, changes)


def fake_result(func: Any, arguments: tuple[Any, ...]) -> Any:
    mode = FakeTensorMode()
    fakes = pytree.tree_map_only(torch.Tensor, lambda t: mode.from_tensor(t, static_shapes=True), arguments)
    if torch.Tag.dynamic_output_shape in func.tags:
        return func(*arguments)
    with mode:
        out = func(*fakes)
    return CORRECTIONS[func](mode, fakes, out) if func in CORRECTIONS else out


def sizes(out: Any) -> list[tuple[Any, ...]]:
    return [(tuple(t.shape), t.stride(), t.dtype, t.untyped_storage().nbytes()) for t in pytree.tree_leaves(out)
            if isinstance(t, torch.Tensor)]
