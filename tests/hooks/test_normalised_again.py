"""Batch normalisation from its kept statistics, and dropout from its kept mask: the first run's bits in every layout."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from stepping import stepped
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.hooks.recipes import Kept
from memfit.hooks.tensor_recompute import parse_tensors, recomputing

CHOSEN = ["native_batch_norm:0-9", "_native_batch_norm_legit:0-9", "_batch_norm_with_update:0-9", "relu:0-9",
          "bernoulli:0-9", "div:0-9", "mul:0-9"]
NORMS: dict[str, Any] = {
    "plain": lambda: nn.BatchNorm2d(24),
    "cumulative": lambda: nn.BatchNorm2d(24, momentum=None),
    "not affine": lambda: nn.BatchNorm2d(24, affine=False),
    "without statistics": lambda: nn.BatchNorm2d(24, track_running_stats=False),
    "evaluating": lambda: nn.BatchNorm2d(24).eval(),
    "large eps": lambda: nn.BatchNorm2d(24, eps=0.1),
    "frozen": lambda: nn.BatchNorm2d(24).requires_grad_(False),
    "instance": lambda: nn.InstanceNorm2d(24, affine=True),
}
SHAPES = [(8, 24, 17, 13), (2, 24, 1, 3)]


def trained(model: nn.Module, x: torch.Tensor, chosen: list[str]) -> list[torch.Tensor]:
    return stepped(model, x.clone, steps=2, forward=lambda: recomputing(parse_tensors(chosen)))


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_same_bits(kind: str, layout: torch.memory_format, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        torch.manual_seed(3)
        plain = nn.Sequential(nn.Conv2d(24, 24, 1), NORMS[kind](), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(24, 24, 1))
        plain = plain.to(dtype=dtype, memory_format=layout)
        x = (torch.randn(shape) * 3 + 1).to(dtype=dtype, memory_format=layout)
        other = copy.deepcopy(plain)
        for one, two in zip(trained(plain, x, []), trained(other, x, CHOSEN), strict=True):
            assert torch.equal(one, two)


class Seen(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_statistics_are_not_computed_twice_and_masks_are_kept_as_bytes() -> None:
    torch.manual_seed(0)
    norm, x = nn.BatchNorm2d(24), torch.randn(8, 24, 16, 16, requires_grad=True)
    with recomputing(parse_tensors(CHOSEN)):
        out = nn.functional.dropout(norm(x * 1.0), 0.5)
    (mask,) = [t for t in gc.get_objects() if type(t) is Kept and t.tensor.dtype == torch.bool]
    assert mask.tensor.shape == x.shape
    del mask
    with Seen() as seen:
        out.square().sum().backward()
    assert "native_batch_norm_backward" in seen.names and "_to_copy" in seen.names
    assert not {"native_batch_norm", "bernoulli_"} & set(seen.names)
