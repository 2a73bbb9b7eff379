"""What the recorder has to know about an operator, looked up once for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from memfit.trace.kernels import scratch_function
from memfit.trace.metas import CORRECTIONS, INSTEAD

aten: Any = torch.ops.aten
_QUIET = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}
_RESHAPING = {"set_", "resize_", "resize_as_"}
_Key = torch._C.DispatchKey


class Facts:
    """Facts about one operator overload. `quiet` operators move no data and own no storage; `by_shape`: shapes decide
    what it gives."""

    __slots__ = ("by_shape", "correct", "counts_flops", "decomposes", "instead", "mutable", "name", "quiet", "random",
                 "scratch", "shape_from_values", "writes")

    def __init__(self, func: Any) -> None:
        schema = getattr(func, "_schema", None)
        packet = getattr(func, "_overloadpacket", None)
        tags = getattr(func, "tags", ())
        self.name: str = packet.__name__ if packet is not None else str(func)
        self.mutable: bool = schema is not None and schema.is_mutable
        self.writes: tuple[int, ...] = _written(func, schema)
        self.quiet: bool = func in _QUIET
        self.random: bool = torch.Tag.nondeterministic_seeded in tags
        self.shape_from_values: bool = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
        self.by_shape: bool = torch.Tag.inplace_view not in tags and self.name not in _RESHAPING
        self.decomposes: bool = _decomposes(func)
        self.counts_flops: Callable[..., Any] | None = flop_registry.get(packet)
        self.correct: Callable[[Any, Any, Any], Any] | None = CORRECTIONS.get(func)
        self.instead: Callable[[Any, Any, Any], Any] | None = INSTEAD.get(func)
        self.scratch: Callable[..., int] | None = scratch_function(func)

    def flops(self, args: Any, kwargs: Any, out: Any) -> int:
        """Floating-point operations of one call; 0 where no formula is known or it does not know this form."""
        if self.counts_flops is None:
            return 0
        try:
            return int(self.counts_flops(*args, **kwargs, out_val=out))
        except Exception:
            return 0


def _written(func: Any, schema: Any) -> tuple[int, ...]:
    """Positions of the arguments that a call writes into; batch normalization's schema does not say so."""
    if func is aten.native_batch_norm.default:
        return 3, 4
    arguments = schema.arguments if schema is not None else ()
    return tuple(place for place, argument in enumerate(arguments)
                 if argument.alias_info is not None and argument.alias_info.is_write)


class FactTable(dict[Any, Facts]):
    """Facts by operator overload."""

    def __missing__(self, func: Any) -> Facts:
        facts = self[func] = Facts(func)
        return facts


def _decomposes(func: Any) -> bool:
    """Whether the real step runs it as several operators. One with a CPU kernel of its own stays whole."""
    return (
        isinstance(func, torch._ops.OpOverload)
        and func.has_kernel_for_dispatch_key(_Key.CompositeImplicitAutograd)
        and not func.has_kernel_for_dispatch_key(_Key.CPU)
        and not func.has_kernel_for_dispatch_key(_Key.Meta)
    )
