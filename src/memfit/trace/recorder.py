"""The fake tensor mode that records: every operator, every storage's birth and death, phases and modules."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.flop_counter import flop_registry

from memfit.core.trace import Kind
from memfit.trace.autograd_in_place import really_in_place
from memfit.trace.kernels import scratch_bytes
from memfit.trace.values import ValueTable

aten: Any = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_QUIET = {aten.detach.default, aten.alias.default, aten.lift_fresh.default}


class Recording:
    """What one step gave, as mutable columns; `steps` turns it into a `Trace`."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        self.storages: list[list[Any]] = []  # nbytes, phase, module, op, shape, dtype, resident
        self.ops: list[tuple[Any, ...]] = []
        self.phases: list[tuple[str, int]] = []
        self.mutated: set[int] = set()


class RecordingMode(FakeTensorMode):
    """FakeTensorMode that also records what happens while a recording is open. One dispatch an operator: a second
    mode on top would double the cost."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.recording: Recording | None = None
        self.phase = "before"
        self.module_of: Callable[[], str] = lambda: ""
        self.live: dict[int, int] = {}
        self._watchers: dict[int, Any] = {}
        self._busy = 0
        self._silent = 0
        self._values = ValueTable()
        self._born: dict[int, tuple[str, str]] = {}  # autograd sequence number -> module, operator
        self.last_operator = ""
        self.last_module = ""

    # -- recording ------------------------------------------------------------------------------------------------

    @contextmanager
    def record(self, into: Recording) -> Iterator[Recording]:
        """Record into `into` until left. What is alive and unknown when first used counts as resident."""
        self.recording, self._born = into, {}
        self.live, self._watchers = {}, {}
        try:
            yield into
        finally:
            self.recording = None
            self.live, self._watchers = {}, {}

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Operators inside are not recorded (building, copying, our own bookkeeping)."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def begin_phase(self, name: str) -> None:
        self.phase = name
        if self.recording is not None:
            self.recording.phases.append((name, len(self.recording.events)))

    def remember_value(self, fake: torch.Tensor, real: torch.Tensor) -> None:
        """Keep a real tensor's value where it can decide shapes or branches (small, integer or boolean)."""
        self._values.remember(fake, real)

    def adopt(self, tensor: torch.Tensor, category_hint: str = "resident") -> int:
        """The index of a tensor's storage, registering it as resident if it is unknown."""
        storage = tensor.untyped_storage()
        index = self.live.get(storage._cdata)
        return self._birth(storage, tensor, category_hint, "", resident=True) if index is None else index

    # -- dispatch -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return args[0].fake_device if type(args[0]) is FakeTensor else args[0].device
        kwargs = kwargs or {}
        if self._busy:  # inside a decomposition: the real kernel does not do these
            return self._plain(func, types, args, kwargs)
        if self._silent or self.recording is None:
            return self._outer(func, types, args, kwargs)
        if _decomposes(func):  # really is several operators: record those
            with self:
                return func.decompose(*args, **kwargs)
        before = self._in_place_instead(func, args)
        self.last_operator = func
        out = before if before is not None else self._outer(func, types, args, kwargs)
        if func not in _QUIET:
            self._record(func, args, kwargs, out)
        return out

    def _outer(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """An operator that the step itself calls: its value is known, or it runs on fakes."""
        known = self._values.answer(self, func, args, kwargs)
        if known is not NotImplemented:
            return known
        self._busy += 1
        try:
            out = self._plain(func, types, args, kwargs)
        finally:
            self._busy -= 1
        self._values.propagate(self, func, args, kwargs, out)
        return out

    def _plain(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        own = _OWN_META.get(func)
        return own(*args, **kwargs) if own is not None else super().__torch_dispatch__(func, types, args, kwargs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Dynamo never runs here; its guard around every dispatch would cost 2 µs an operator."""
        return False

    # -- bookkeeping ----------------------------------------------------------------------------------------------

    def _record(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        recording = self.recording
        assert recording is not None
        live, moved, dtype = self.live, 0, ""
        reads: list[int] = []
        for tensor in _flat(args):
            if type(tensor) is not FakeTensor and not isinstance(tensor, FakeTensor):
                continue
            index = live.get(tensor.untyped_storage()._cdata)
            if index is None:
                index = self.adopt(tensor)
            reads.append(index)
            moved += tensor.numel() * tensor.element_size()
            if not dtype and tensor.is_floating_point():
                dtype = str(tensor.dtype)[6:]
        module, recomputed = self._where(func)
        name = func._overloadpacket.__name__ if hasattr(func, "_overloadpacket") else str(func)
        writes: list[int] = []
        fresh = False
        for tensor in _flat((out,)):
            storage = tensor.untyped_storage()
            index = live.get(storage._cdata)
            if index is None:
                index = self._birth(storage, tensor, module, name, resident=False)
                fresh = True
            writes.append(index)
            moved += tensor.numel() * tensor.element_size()
            if not dtype and tensor.is_floating_point():
                dtype = str(tensor.dtype)[6:]
        mutable = func._schema.is_mutable if hasattr(func, "_schema") else False
        if mutable and reads:
            recording.mutated.add(reads[0])
        if not fresh and not mutable:
            return  # a view
        flops = self._flops(func, args, kwargs, out)
        scratch = scratch_bytes(func, args, out)
        recording.ops.append((name, self.phase, module, flops, moved, scratch, dtype, recomputed,
                              tuple(reads), tuple(writes)))
        recording.events.append((Kind.OP, len(recording.ops) - 1))

    def _birth(self, storage: Any, tensor: torch.Tensor, module: str, op: str, *, resident: bool) -> int:
        recording = self.recording
        assert recording is not None
        index, key = len(recording.storages), storage._cdata
        recording.storages.append([storage.nbytes(), self.phase, module, op, tuple(tensor.shape),
                                   str(tensor.dtype)[6:], resident])
        self.live[key] = index
        events, live, watchers = recording.events, self.live, self._watchers

        def died(_: Any, key: int = key, index: int = index) -> None:
            if live.get(key) == index:
                del live[key]
                watchers.pop(key, None)
                events.append((Kind.DEATH, index))

        watchers[key] = weakref.ref(storage, died)
        if not resident:
            events.append((Kind.BIRTH, index))
        return index

    def _where(self, func: Any) -> tuple[str, bool]:
        """The module an operator belongs to, and whether it is forward work done again in backward."""
        if self.phase != "backward":
            module = self.module_of()
            if self.phase == "forward":
                self._born[torch._C._autograd._get_sequence_nr() - 1] = (module, "")
            return module, False
        module = self.module_of()
        if module:
            return module, True
        node = torch._C._current_autograd_node()
        if node is None:
            return "", False
        return self._born.get(node._sequence_nr(), ("", ""))[0], torch.is_grad_enabled()

    def _flops(self, func: Any, args: Any, kwargs: Any, out: Any) -> int:
        packet = getattr(func, "_overloadpacket", None)
        counter = flop_registry.get(packet)
        if counter is None:
            return 0
        try:
            return int(counter(*args, **kwargs, out_val=out))
        except Exception:  # a formula that does not know this form of the call
            return 0

    def _in_place_instead(self, func: Any, args: Any) -> Any:
        return really_in_place(func, args) if self.phase == "backward" else None


def _silu_backward(grad: torch.Tensor, self: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(self)


_OWN_META: dict[Any, Callable[..., Any]] = {}


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)


_decomposing: dict[Any, bool] = {}


def _decomposes(func: Any) -> bool:
    known = _decomposing.get(func)
    if known is None:
        known = (
            isinstance(func, torch._ops.OpOverload)
            and func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
            and not func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CPU)
            and not func.has_kernel_for_dispatch_key(torch._C.DispatchKey.Meta)
        )
        _decomposing[func] = known
    return known
