"""What a backward formula needs of a tensor that its operator saved, by operator.

Values decide nothing here: a trace on fake tensors finds the same as a real step. That a ReLU needs only a bit, and a pooling
layer nothing of its input: A. Jain et al., "Gist: Efficient Data Encoding for Deep Neural Network Training" (ISCA 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

VALUE = "value"
SHAPE = "shape"  # its size and strides only
KEPT = "kept"  # nobody knows: it stays as it is
Range = tuple[int, int]  # the least and the largest number that an index can be
_MOST = 1e4  # bounds beyond are no activation function's


@dataclass(frozen=True)
class Gate:
    """Only on which side of its bounds each number is: inside `(low, high)` or outside. `nan_inside` is where the formula puts
    what is no number (that of hardtanh puts it inside or outside by where in memory it lies; here it is outside)."""

    low: float
    high: float = float("inf")
    nan_inside: bool = False

    def test(self, x: torch.Tensor) -> torch.Tensor:
        inside = (x <= self.low).logical_not_() if self.nan_inside else x > self.low
        return inside if self.high == float("inf") else inside.logical_and_(x < self.high)

    @property
    def stand_ins(self) -> tuple[float, float]:
        """A number inside and one outside."""
        inside = self.low + 1.0 if self.high == float("inf") else (self.low + self.high) / 2
        return inside, self.low


Need = str | Gate


def of_input(name: str, args: Any) -> Need:
    """Of a floating-point argument that the operator `name` saves."""
    if name in _ONLY_SHAPES:
        return SHAPE
    if name == "leaky_relu":
        return Gate(0.0)
    if name in ("hardtanh", "hardtanh_"):
        low, high = (float(value) for value in (*args[1:3], *(-1.0, 1.0)[len(args[1:3]):]))
        return Gate(low, high) if -_MOST < low < high < _MOST else VALUE
    return VALUE


def of_output(name: str, args: Any) -> Need:
    """Of its own result that the operator `name` saves. A step's error in a logarithm is one in proportion: those are kept."""
    if name == "_log_softmax":
        return KEPT
    if name in ("relu", "relu_"):
        return Gate(0.0, nan_inside=True)
    if name == "leaky_relu_" and (args[1] if len(args) > 1 else 0.01) > 0:
        return Gate(0.0)
    return VALUE


def saves_clone(name: str) -> bool:
    """Whether an in-place operator saves a copy of what it overwrites."""
    return name == "hardtanh_"


def range_of_argument(name: str, args: Any) -> Range | None:
    """Of the index tensors that an operator takes and saves; the operator itself refuses numbers beyond."""
    size = _INDEXED.get(name)
    if size is None:
        return None
    return size(args)


def range_of_output(name: str, args: Any, index: int) -> Range | None:
    """Of output number `index`, where that is a tensor of positions."""
    if index != 1 or name not in _POSITIONS:
        return None
    x = args[0]
    if name in _POOLS:
        return 0, max(0, x.shape[-1] * x.shape[-2] - 1)
    return 0, max(x.shape, default=1) - 1


def draws_bits(name: str, args: Any) -> bool:
    """Whether the result is zeros and ones."""
    return name in ("bernoulli_", "bernoulli") or (name == "_to_copy" and args[0].dtype is torch.bool)


def scales(name: str, args: Any) -> bool:
    """Whether it multiplies its first argument in place by a plain number."""
    return name in ("div_", "mul_") and len(args) == 2 and isinstance(args[1], (int, float))


_ONLY_SHAPES = frozenset({"max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d"})
_POOLS = frozenset({"max_pool2d_with_indices", "adaptive_max_pool2d"})
_POSITIONS = _POOLS | {"topk", "sort", "max", "min", "mode", "median", "kthvalue"}


def _along(args: Any) -> Range:
    x, dim = args[0], args[1]
    return 0, max(0, (x.shape[dim] if x.dim() else 1) - 1)


def _rows(args: Any) -> Range:
    return 0, max(0, args[0].shape[0] - 1)


def _either_end(args: Any) -> Range:
    longest = max(args[0].shape, default=1)
    return -longest, longest - 1


def _classes(args: Any) -> Range:
    classes = args[0].shape[1 if args[0].dim() > 1 else 0]
    ignored = next((value for value in args[4:5]), -100)
    return min(0, ignored), max(classes - 1, ignored)


_INDEXED: dict[str, Callable[[Any], Range]] = {
    "embedding": _rows, "gather": _along, "index_select": _along, "scatter": _along, "scatter_add": _along,
    "index_add": _along, "index": _either_end, "nll_loss_forward": _classes, "nll_loss2d_forward": _classes,
}
