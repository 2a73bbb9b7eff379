"""One call of a convolution kernel, as far as the choice of its algorithm depends on it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT = "fwd", "dgrad", "wgrad"
DIRECTIONS = (FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT)
ITEMSIZE = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}

Sides = tuple[int, ...]


@dataclass(frozen=True)
class ConvolutionCall:
    """Sides are N, C, spatial...; `w` is K, C / groups, kernel.... Two or three spatial sides: a sequence has one of 1.

    `y` are the sides of the result, whatever the direction. `allow_tf32` and `deterministic` as in
    `torch.backends.cudnn`; they exclude engines.
    """

    direction: str
    dtype: str
    x: Sides
    w: Sides
    y: Sides
    stride: Sides
    padding: Sides
    dilation: Sides
    channels_last: bool = False
    allow_tf32: bool = True
    deterministic: bool = False

    def __post_init__(self) -> None:
        spatial = len(self.x) - 2
        sided = len(self.w) == len(self.y) == spatial + 2
        settings = len(self.stride) == len(self.padding) == len(self.dilation) == spatial
        if not sided or not settings or self.direction not in DIRECTIONS or self.dtype not in ITEMSIZE:
            raise ValueError(f"not a convolution: {self}")

    @property
    def groups(self) -> int:
        return max(1, self.x[1] // max(1, self.w[1]))

    @property
    def tensors_bytes(self) -> int:
        """Input, result and weight together: the scale of most workspaces."""
        return sum(map(math.prod, (self.x, self.w, self.y))) * ITEMSIZE[self.dtype]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: dict[str, Any]) -> ConvolutionCall:
        known: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
        return ConvolutionCall(**known)
