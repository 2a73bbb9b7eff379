"""What the recorder has to know about an operator, looked up once for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import torch

from memfit.jobs.flops import flop_formula, flops_of
from memfit.trace import kernels, metas
from memfit.trace.cuda import CudaTarget
from memfit.trace.cuda import convolution as cuda_convolution
from memfit.trace.cuda import kernels as cuda_kernels
from memfit.trace.cuda import metas as cuda_metas

aten: Any = torch.ops.aten
_QUIET = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}
_RESHAPING = {"set_", "resize_", "resize_as_"}
_Key = torch._C.DispatchKey


@dataclass(frozen=True)
class Semantics:
    """A device's kernels: their scratch memory, where the fake results differ, operators that stay whole, and those that
    are made in parts (`parts(args, kwargs)` gives the result by smaller calls, or None for a call that is one already)."""

    scratch: Callable[[Any], Callable[..., Any] | None]
    corrections: Mapping[Any, Callable[..., Any]]
    instead: Mapping[Any, Callable[..., Any]]
    whole: frozenset[Any] = frozenset()
    parts: Mapping[Any, Callable[[Any, Any], Any]] = field(default_factory=dict)


CPU = Semantics(kernels.scratch_function, metas.CORRECTIONS, metas.INSTEAD)


def semantics_of(target: CudaTarget | None) -> Semantics:
    """The kernels of a card, or (None) of the CPU."""
    if target is None:
        return CPU
    scratch = partial(_scratch_on, target)
    return Semantics(scratch, cuda_metas.corrections(target), cuda_metas.INSTEAD, cuda_metas.WHOLE, cuda_convolution.PARTS)


def _scratch_on(target: CudaTarget, func: Any) -> Callable[..., Any] | None:
    return cuda_kernels.scratch_function(func, target)


class Facts:
    """Facts about one operator overload. `quiet` operators move no data and own no storage; `by_shape`: shapes decide
    what it gives."""

    __slots__ = ("by_shape", "correct", "counts_flops", "decomposes", "instead", "mutable", "name", "parts", "quiet",
                 "random", "scratch", "shape_from_values", "writes")

    def __init__(self, func: Any, semantics: Semantics = CPU) -> None:
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
        self.decomposes: bool = func not in semantics.whole and _decomposes(func)
        self.counts_flops: Callable[..., Any] | None = flop_formula(func)
        self.correct: Callable[[Any, Any, Any], Any] | None = semantics.corrections.get(func)
        self.instead: Callable[[Any, Any, Any], Any] | None = semantics.instead.get(func)
        self.scratch: Callable[..., Any] | None = semantics.scratch(func)
        self.parts: Callable[[Any, Any], Any] | None = semantics.parts.get(func)

    def flops(self, args: Any, kwargs: Any, out: Any) -> int:
        """Floating-point operations of one call; 0 where no formula is known or it does not know this form."""
        return flops_of(self.counts_flops, args, kwargs, out)


def _written(func: Any, schema: Any) -> tuple[int, ...]:
    """Positions of the arguments that a call writes into; batch normalization's schema does not say so."""
    if func is aten.native_batch_norm.default:
        return 3, 4
    arguments = schema.arguments if schema is not None else ()
    return tuple(place for place, argument in enumerate(arguments)
                 if argument.alias_info is not None and argument.alias_info.is_write)


class FactTable(dict[Any, Facts]):
    """Facts by operator overload, for one device's kernels."""

    def __init__(self, semantics: Semantics = CPU) -> None:
        super().__init__()
        self._semantics = semantics

    def __missing__(self, func: Any) -> Facts:
        facts = self[func] = Facts(func, self._semantics)
        return facts


@lru_cache(maxsize=8)
def facts_for(target: CudaTarget | None) -> FactTable:
    """The table for a card, or (None) for the CPU; kept, as it fills with use."""
    return FactTable(semantics_of(target))


def _decomposes(func: Any) -> bool:
    """Whether the real step runs it as several operators. One with a CPU kernel of its own stays whole."""
    return (
        isinstance(func, torch._ops.OpOverload)
        and func.has_kernel_for_dispatch_key(_Key.CompositeImplicitAutograd)
        and not func.has_kernel_for_dispatch_key(_Key.CPU)
        and not func.has_kernel_for_dispatch_key(_Key.Meta)
    )
