"""Memory that a CPU kernel takes inside one call and gives back before it returns, as functions of shapes.

Each was read off the kernel's source and checked against the profiler's memory events. They count bytes above what the
call leaves behind, inputs aside. Where a library chooses among algorithms (oneDNN), the rule holds for most shapes and
says which not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memfit.trace.kernels import attention, convolution, copies, elementwise, normalization, products, recurrent, reductions

Scratch = Callable[[Any, Any, Any], int]

_TABLE: dict[Any, Scratch] = {}
for _room in (attention, convolution, copies, normalization, products, recurrent, reductions):
    _TABLE.update(_room.SCRATCH)


def scratch_function(func: Any) -> Scratch | None:
    """`scratch(args, kwargs, out)` in bytes, or None for a kernel that takes nothing."""
    return _TABLE.get(func) or elementwise.scratch_function(func)


def scratch_bytes(func: Any, args: Any, out: Any, kwargs: Any = None) -> int:
    """Bytes that live only inside one call, above its outputs."""
    function = scratch_function(func)
    return 0 if function is None else function(args, kwargs or {}, out)
