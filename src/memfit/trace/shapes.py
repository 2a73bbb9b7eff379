"""What an operator's call gives, remembered by the shapes of its arguments: a second call need not ask the kernel again.

torch's own fake tensor cache does the same for more cases (symbolic shapes, other devices) at about three times the cost.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memfit.trace.cuda.libraries import flags

_META = torch.device("meta")
_CPU = torch.device("cpu")
_MOST_ENTRIES = 200_000
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Outcome:
    """What a call gives and costs. `outputs` are specs: None; an int (that argument itself); or
    `(shape, strides, dtype, offset, argument whose storage it views or -1)`; `single` if there is just one."""

    __slots__ = ("buffers", "dtype", "flops", "moved_bytes", "outputs", "scratch_bytes", "sequence", "single", "small",
                 "workspace")

    def __init__(self, outputs: tuple[Any, ...], sequence: type, single: bool, small: bool) -> None:
        self.outputs = outputs
        self.sequence = sequence
        self.single = single
        self.small = small
        self.flops = self.moved_bytes = self.scratch_bytes = 0
        self.dtype = ""
        self.buffers: tuple[int, ...] = ()
        self.workspace: tuple[int, int, int] | None = None


class ShapeCache:
    """Outcomes by signature. They hold for one number of threads and one setting of cuDNN: kernels' scratch memory depends
    on them."""

    def __init__(self) -> None:
        self._outcomes: dict[Any, Outcome | None] = {}
        self._settings: tuple[Any, ...] = ()

    def prepare(self) -> None:
        """Drop what no longer holds, or has grown too large."""
        settings = torch.get_num_threads(), flags()
        if settings != self._settings or len(self._outcomes) > _MOST_ENTRIES:
            self._outcomes.clear()
            self._settings = settings

    def find(self, signature: Any) -> Outcome | None:
        return self._outcomes.get(signature)

    def keep(self, signature: Any, outcome: Outcome) -> None:
        self._outcomes[signature] = outcome


def signature(func: Any, args: Any, kwargs: Any) -> tuple[Any, ...] | None:
    """A key for the call, or None where shapes alone do not decide what it gives."""
    parts: list[Any] = [func, torch.get_default_dtype()]
    if not _describe(args, parts):
        return None
    for name, value in kwargs.items():
        parts.append(name)
        if not _describe((value,), parts):
            return None
    return tuple(parts)


def _describe(values: Any, parts: list[Any]) -> bool:
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            dtype = value.dtype
            if dtype.is_complex:  # conjugate views are flags, not shapes
                return False
            parts += (value.shape, value.stride(), dtype, value.storage_offset())
        elif kind in _PLAIN:
            parts += (kind, value)  # 1 and 1.0 and True are equal, and give other dtypes
        elif kind is list or kind is tuple:
            parts.append(len(value))
            if not _describe(value, parts):
                return False
        else:
            return False
    return True


def outcome_of(args: Any, kwargs: Any, out: Any, small_limit: int) -> Outcome | None:
    """The outcome that `out` shows; None where another call with these shapes might give another kind of thing."""
    if any(isinstance(value, torch.Tensor) and type(value) is not FakeTensor for value in args):
        return None
    single = not isinstance(out, (list, tuple))
    specs: list[Any] = []
    small = False
    storages: set[int] = set()
    for value in (out,) if single else out:
        if value is None:
            specs.append(None)
        elif type(value) is FakeTensor and value.layout == torch.strided:
            spec = _spec(value, args, kwargs)
            if spec is NotImplemented:
                return None
            if type(spec) is tuple and spec[-1] < 0:
                if value.untyped_storage()._cdata in storages:
                    return None  # two outputs in one storage
                storages.add(value.untyped_storage()._cdata)
            specs.append(spec)
            small = small or not value.is_floating_point() or value.numel() <= small_limit
        else:
            return None
    return Outcome(tuple(specs), type(out), single, small)


def _spec(value: Any, args: Any, kwargs: Any) -> Any:
    for position, arg in enumerate(args):
        if arg is value:
            return position
    if any(arg is value for arg in kwargs.values()) or value.dtype.is_complex or value.fake_device != _CPU:
        return NotImplemented
    storage = value.untyped_storage()
    shape, strides, offset = tuple(value.shape), value.stride(), value.storage_offset()
    for position, arg in enumerate(args):
        if type(arg) is FakeTensor and arg.untyped_storage()._cdata == storage._cdata:
            return shape, strides, value.dtype, offset, position
    extent = 1 + sum((side - 1) * stride for side, stride in zip(shape, strides, strict=True)) if value.numel() else 0
    if offset or value.is_neg() or storage.nbytes() != extent * value.element_size():
        return NotImplemented  # its storage is not its own (an input inside a list, padding)
    return shape, strides, value.dtype, 0, -1


def produce(mode: Any, outcome: Outcome, args: Any) -> Any:
    """New fake tensors by an outcome; views share the storages of these `args`."""
    if outcome.single:
        return _produce_one(mode, outcome.outputs[0], args)
    made = [_produce_one(mode, spec, args) for spec in outcome.outputs]
    return made if outcome.sequence is list else tuple(made)


def _produce_one(mode: Any, spec: Any, args: Any) -> Any:
    if spec is None:
        return None
    if type(spec) is int:
        return args[spec]
    shape, strides, dtype, offset, base = spec
    made = torch.empty_strided(shape, strides, dtype=dtype, device=_META)
    if base >= 0:
        made.set_(args[base].untyped_storage(), offset, shape, strides)
    return FakeTensor(mode, made, _CPU)


def alias(mode: Any, fake: Any) -> Any:
    """Another tensor over the same storage: a functional operator may not give its own argument back."""
    return _produce_one(mode, (fake.shape, fake.stride(), fake.dtype, fake.storage_offset(), 0), (fake,))


@lru_cache(maxsize=4)
def cache_for(target: Any) -> ShapeCache:
    """One for the process and a device: what shapes give does not depend on who asks. `target` is a card, None the CPU."""
    return ShapeCache()
