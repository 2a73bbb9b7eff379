"""Convolutions on a card: which go to cuDNN, what they take, and the order in which a backward allocates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from memfit.core.trace import Kind, Trace
from memfit.hardware import find_device
from memfit.jobs import Job
from memfit.trace import trace_job
from memfit.trace.cuda import convolution, depthwise, target_of
from memfit.trace.cuda.convolution import Layer
from memfit.trace.cuda.sizes import Elastic

CARD = find_device("rtx3060")
TARGET = target_of(CARD)
assert TARGET is not None
LAST = torch.channels_last


@pytest.fixture(autouse=True)
def by_class(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The shipped table answers: the same on every machine."""
    monkeypatch.setenv("MEMFIT_CUDNN", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def layer(groups: int = 1, stride: int = 1, dilation: int = 1, transposed: bool = False, output_padding: int = 0) -> Layer:
    return Layer.of(2, ([stride], [1], [dilation], transposed, [output_padding], groups))


def meta(*sides: int, dtype: torch.dtype = torch.float32, last: bool = False) -> torch.Tensor:
    made = torch.empty(sides, dtype=dtype, device="meta")
    return made.to(memory_format=LAST) if last else made


HALF, BF16 = torch.float16, torch.bfloat16
DENSE, DEPTHWISE = (64, 64, 3, 3), (64, 1, 3, 3)
CHOICES = [  # type, weight, layer, channels last, whether cuDNN takes it
    (torch.float32, DENSE, layer(), False, True),
    (torch.float32, (64, 32, 3, 3), layer(2), False, True),
    (torch.float32, DEPTHWISE, layer(64), False, False),
    (torch.float32, DEPTHWISE, layer(64), True, True),
    (BF16, DEPTHWISE, layer(64), False, False),
    (HALF, DEPTHWISE, layer(64), False, True),
    (HALF, DEPTHWISE, layer(64, stride=2), False, False),
    (HALF, DEPTHWISE, layer(64, dilation=2), False, False),
    (torch.float32, DENSE, layer(transposed=True), False, True),
    (torch.float32, DENSE, layer(transposed=True, output_padding=1, stride=2), False, True),
    (torch.float32, DENSE, layer(transposed=True, output_padding=2, stride=2), False, False),
    (torch.int8, DENSE, layer(), False, False),
]


@pytest.mark.parametrize(("dtype", "weight", "settings", "last", "expected"), CHOICES)
def test_which_convolutions_go_to_cudnn(dtype: torch.dtype, weight: tuple[int, ...], settings: Layer, last: bool,
                                        expected: bool) -> None:
    x, w = meta(8, 64, 56, 56, dtype=dtype, last=last), meta(*weight, dtype=dtype, last=last)
    assert convolution.through_cudnn(x, w, settings, TARGET) is expected


def test_old_cards_and_versions_choose_otherwise() -> None:
    x, w = meta(8, 64, 56, 56, dtype=BF16), meta(*DENSE, dtype=BF16)
    assert convolution.through_cudnn(x, w, layer(), TARGET)
    assert not convolution.through_cudnn(x, w, layer(), replace(TARGET, compute_capability=(7, 5)))
    video, kernel = meta(1, 8, 4, 16, 16, dtype=BF16), meta(8, 8, 3, 3, 3, dtype=BF16)
    settings = Layer.of(3, ([1], [1], [1], False, [0], 1))
    assert not convolution.through_cudnn(video, kernel, settings, replace(TARGET, torch_version=(2, 10)))
    assert convolution.through_cudnn(video, kernel, settings, replace(TARGET, torch_version=(2, 7)))
    out = torch.empty(1, 8, 4, 16, 16, dtype=BF16, device="meta")
    columns = convolution.forward((video, kernel, None, [1], [1], [1], False, [0], 1), {}, out,
                                  replace(TARGET, torch_version=(2, 10)))
    assert columns == 8 * 27 * 4 * 16 * 16 * 2


def test_half_depthwise_by_the_list() -> None:
    def takes(channels: int, width: int, stride: int, side: int = 3, batch: int = 8) -> bool:
        x, w = meta(batch, channels, width, width, dtype=HALF), meta(channels, 1, side, side, dtype=HALF)
        return depthwise.through_cudnn(x, w, (stride, stride), (1, 1))

    assert takes(32, 56, 1) and not takes(31, 56, 1) and not takes(64, 6, 1) and not takes(64, 56, 1, side=7)
    assert takes(512, 14, 2) and takes(256, 28, 2) and not takes(256, 14, 2) and takes(64, 14, 2, batch=1)


def test_scratch_is_a_range_above_copies_into_the_layout() -> None:
    x, w = meta(8, 64, 56, 56), meta(*DENSE)
    plain = convolution.forward((x, w, None, [1], [1], [1], False, [0], 1), {}, x, TARGET)
    assert isinstance(plain, Elastic) and plain.low_bytes <= plain.typical_bytes <= plain.high_bytes
    turned = meta(8, 56, 64, 56).transpose(1, 2)
    copied = convolution.forward((turned, w, None, [1], [1], [1], False, [0], 1), {}, x, TARGET)
    assert [a - b for a, b in zip(copied, plain, strict=True)] == [x.numel() * 4] * 3
    last = meta(8, 64, 56, 56, last=True)
    mixed = convolution.forward((last, w, None, [1], [1], [1], False, [0], 1), {}, last, TARGET)
    assert isinstance(mixed, Elastic) and mixed.low_bytes >= w.numel() * 4  # the weight, channels last


def test_switched_off_it_is_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    x, w = meta(8, 64, 56, 56), meta(*DENSE)
    assert convolution.forward((x, w, None, [1], [1], [1], False, [0], 1), {}, x, TARGET) == 64 * 9 * 56 * 56 * 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def step() -> Trace:
    job = Job(Net, lambda model, x: model(x).square().mean(), torch.empty(4, 3, 32, 32),
              lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    return trace_job(job, CARD).steady


def test_a_backward_is_recorded_gradient_by_gradient() -> None:
    trace = step()
    found = []
    for position, (kind, index) in enumerate(trace.events):
        if kind == Kind.OP and trace.ops[index].phase == "backward" and "conv" in trace.ops[index].name:
            births = [trace.storages[i].shape for k, i in trace.events[:position][-2:] if k == Kind.BIRTH]
            found.append((trace.ops[index].module, births[-1], trace.ops[index].workspace is not None))
    assert found == [("second", (4, 16, 32, 32), True), ("second", (16, 8, 2, 2), True), ("first", (16, 3, 3, 3), True)]
    sums = [op for op in trace.ops if op.phase == "backward" and op.name == "sum"]
    assert [op.module for op in sums] == ["second", "first"]


def test_a_setting_of_cudnn_counts_from_the_next_trace_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def workspaces() -> int:
        return sum(op.scratch_bytes for op in step().ops if op.name == "convolution")

    rounded = workspaces()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert workspaces() < rounded


def test_gradients_are_those_of_one_call() -> None:
    """Parts and whole give tensors of the same shapes."""
    grad, x, w = torch.randn(2, 6, 8, 8), torch.randn(2, 3, 8, 8), torch.randn(6, 3, 3, 3)
    rest = ([6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    whole = torch.ops.aten.convolution_backward(grad, x, w, *rest, [True, True, True])
    parts = convolution.backward_in_parts((grad, x, w, *rest, [True, True, True]), {})
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other)
    assert convolution.backward_in_parts((grad, x, w, *rest, [False, True, False]), {}) is None
