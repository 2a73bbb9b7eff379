"""Where no cuDNN answers: workspaces by class of layer, from a table made of a library's answers, else from bounds.

The table (`workspaces.json`, made by `benchmarks/cudnn_table.py`) holds for each version, compute capability and class the
workspace of the engine that is tried first, as a multiple of input, result and weight together. The bounds are for cards
and types that it does not have. cuDNN works on copies in the layout (and, for float32 on tensor cores, the rounding) that
an engine takes: that is what the multiples mean.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from memfit.hardware.cudnn.question import BACKWARD_DATA, BACKWARD_WEIGHT, ConvolutionCall

_TABLE = Path(__file__).with_name("workspaces.json")


class Multiples(NamedTuple):
    """Workspace over the bytes of input, result and weight: least, usual, most."""

    low: float
    typical: float
    high: float


def layer_class(call: ConvolutionCall) -> str:
    """What the choice of engine depends on most: `float32 nchw 2d fwd kernel`."""
    tf32 = " no-tf32" if call.dtype == "float32" and not call.allow_tf32 else ""
    layout = "nhwc" if call.channels_last else "nchw"
    return f"{call.dtype}{tf32} {layout} {len(call.stride)}d {call.direction} {_kind(call)}"


def multiples(call: ConvolutionCall, capability: tuple[int, int], version: int | None) -> tuple[Multiples, str]:
    """The class's multiples, and where they come from."""
    found = _from_table(call, capability, version)
    if found is not None:
        return found
    return _bounds(call, capability), "bounds by class of layer"


def table_versions() -> list[int]:
    """The versions of cuDNN that the table was made of."""
    return sorted(map(int, _table()))


def _kind(call: ConvolutionCall) -> str:
    kernel = call.w[2:]
    if call.groups > 1:
        return "depthwise" if call.w[1] == 1 else "grouped"
    if call.w[1] <= 4:
        return "patch" if max(kernel) > 1 and all(s >= k for s, k in zip(call.stride, kernel, strict=True)) else "image"
    if max(kernel) == 1:
        return "pointwise" if call.w[0] > 64 and call.w[1] > 64 else "pointwise-thin"
    return "strided" if max(call.stride) > 1 else "kernel"


def _from_table(call: ConvolutionCall, capability: tuple[int, int], version: int | None) -> tuple[Multiples, str] | None:
    versions = table_versions()
    for nearest in sorted(versions, key=lambda one: abs(one - (version or versions[-1]))):
        found = _table()[str(nearest)].get(f"{capability[0]}.{capability[1]}", {}).get(layer_class(call))
        if found is not None:
            return Multiples(*found), f"table of cuDNN {nearest // 10000}.{nearest // 100 % 100}"
    return None


def _bounds(call: ConvolutionCall, capability: tuple[int, int]) -> Multiples:
    """Wide: what was seen over 20 classes of layers on six cards, and half more."""
    wide = len(call.stride) > 2
    if call.dtype == "float64":
        return Multiples(0.0, 0.0, 1.5)
    if call.dtype == "float32" and (capability < (8, 0) or not call.allow_tf32):
        return Multiples(0.0, 0.0, 1.2)
    if wide:
        return Multiples(0.0, 1.0, 3.0)
    if call.dtype == "float32":
        typical = 0.5 if call.channels_last or max(call.w[2:]) == 1 else 1.0
        return Multiples(0.0, typical, 2.0)
    if call.channels_last:
        return Multiples(0.0, 0.0, 1.0 if call.direction in (BACKWARD_DATA,) else 1.4)
    return Multiples(0.0, 1.05 if call.direction == BACKWARD_WEIGHT else 1.0, 2.0)


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    try:
        return json.loads(_TABLE.read_text(encoding="utf-8"))["multiples"]
    except (OSError, ValueError, KeyError):
        return {}
