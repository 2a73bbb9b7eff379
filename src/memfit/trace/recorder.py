"""The fake tensor mode that records: every operator, every storage's birth and death, phases and modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from memfit.core.errors import Untraceable
from memfit.trace import shapes, values
from memfit.trace.cuda import CudaTarget, devices
from memfit.trace.cuda.sizes import taken
from memfit.trace.in_place import IN_PLACE, PRODUCTS, InPlaceRules
from memfit.trace.operators import Facts, facts_for
from memfit.trace.recording import Recording

_DEVICE = torch.ops.prim.device.default
_autograd: Any = getattr(torch._C, "_autograd")  # noqa: B009 - torch's stubs do not name it
_IN_PLACE = InPlaceRules()


class RecordingMode(FakeTensorMode):
    """FakeTensorMode that also records what happens while a recording is open. One dispatch an operator: a second
    mode on top would double the cost."""

    def __init__(self, target: CudaTarget | None = None) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.target = target
        self._facts = facts_for(target)
        self._shapes = shapes.cache_for(target)
        self.cache_enabled = False  # `shapes` is ours
        self.recording: Recording | None = None
        self.module = ""  # path of the innermost running module
        self.owners: dict[int, str] = {}  # id of a parameter -> path of its module
        self.last_operator: Any = None
        self.last_module = ""
        self._held: list[Any] = []  # fakes of real tensors live as long as those: all through the step
        self._busy = 0
        self._silent = 0
        self._just_made = 0
        self._module_of_node: dict[int, str] = {}  # autograd sequence number -> module that its forward ran in

    @contextmanager
    def record(self, into: Recording) -> Iterator[Recording]:
        """Record into `into` until left. What is alive and unknown when first used counts as resident."""
        _IN_PLACE.calibrate(self)
        self._shapes.prepare()
        self._module_of_node.clear()
        self.module = self.last_module = ""
        self.recording = into
        try:
            yield into
        finally:
            self.recording = None
            into.close()
            self._held.clear()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Operators inside are not recorded (building, copying, our own bookkeeping)."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Operators inside are recorded, inside `silent`, too."""
        silent, self._silent = self._silent, 0
        try:
            yield
        finally:
            self._silent = silent

    def kernel(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Record a call that is no operator: a compiled kernel on these tensors."""
        recording = self.recording
        if recording is None or self._silent:
            return
        module, recomputed = self._where(recording.phase)
        touched = tuple(recording.index_of(tensor) for tensor in tensors)
        moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        dtype = next((str(tensor.dtype)[6:] for tensor in tensors if tensor.is_floating_point()), "")
        recording.operator((name, recording.phase, module, 0, moved, 0, dtype, recomputed, touched, touched, (), None,
                            torch._C._current_autograd_node() is not None))

    # -- dispatch -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return args[0].fake_device if type(args[0]) is FakeTensor else args[0].device
        kwargs = kwargs or {}
        if self._busy:  # inside a meta kernel or a decomposition: the real kernel does not do these
            return self.dispatch(func, types, args, kwargs)
        card = self.target is not None and devices.asks_for_card(kwargs)
        if card:
            kwargs, same = devices.at_home(self, func, args, kwargs)
            if same is not None:
                return same
        facts = self._facts[func]
        recording = None if self._silent else self.recording
        if recording is not None:
            if facts.decomposes:  # really is several operators: record those
                with self:
                    return func.decompose(*args, **kwargs)
            if facts.parts is not None:
                with self:
                    made = facts.parts(args, kwargs)
                if made is not None:
                    return made
            self.last_operator = func
        instead = None
        if func in IN_PLACE:
            instead = _IN_PLACE.in_place(func, args, sys._getframe(1), self._just_made)
            if instead is not None:
                func, facts = instead, self._facts[instead]
        out, outcome = self._call(func, facts, types, args, kwargs)
        if self.target is not None and not card:
            devices.note_host(func, args, out)
        if recording is not None and not facts.quiet and out is not NotImplemented:
            self._record(recording, facts, args, kwargs, out, outcome)
        if func in PRODUCTS:
            _IN_PLACE.product(sys._getframe(1), out)
        return shapes.alias(self, out) if instead is not None else out

    def _call(self, func: Any, facts: Facts, types: Any, args: Any, kwargs: Any) -> tuple[Any, shapes.Outcome | None]:
        """The call's result on fakes, and its outcome where shapes alone decide it."""
        if facts.shape_from_values:
            known = values.answer(self, func, args, kwargs)
            if known is not NotImplemented:
                if self.recording is not None and self.recording.phase == "forward":
                    self.recording.reads_values = True
                return known, None
            args = values.with_masks_counted(self, func, args)
        key = shapes.signature(func, args, kwargs) if facts.by_shape else None
        outcome = self._shapes.find(key) if key is not None else None
        if outcome is None:
            return self._ask_kernel(func, facts, types, args, kwargs, key)
        out = shapes.produce(self, outcome, args)
        if outcome.small or facts.mutable:
            values.after(func, facts, args, kwargs, out)
        return out, outcome

    def _ask_kernel(
        self, func: Any, facts: Facts, types: Any, args: Any, kwargs: Any, key: Any
    ) -> tuple[Any, shapes.Outcome | None]:
        self._busy += 1
        try:
            own = facts.instead
            out = self.dispatch(func, types, args, kwargs) if own is None else own(self, args, kwargs)
        finally:
            self._busy -= 1
        if out is NotImplemented:
            return out, None
        if facts.correct is not None:
            out = facts.correct(self, args, out)
        if type(out) is FakeTensor and out.constant is not None:
            constant, out.constant = out.constant, None  # one place for values, that views and writes see
            values.keep(out, constant)
        outcome = shapes.outcome_of(args, kwargs, out, values.SMALL) if key is not None else None
        if outcome is not None:
            self._cost(outcome, facts, args, kwargs, out)
            self._shapes.keep(key, outcome)
        values.after(func, facts, args, kwargs, out)
        return out, outcome

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Dynamo never runs here; its guard around every dispatch would cost 2 µs an operator."""
        return False

    # -- bookkeeping ----------------------------------------------------------------------------------------------

    def _cost(self, outcome: shapes.Outcome, facts: Facts, args: Any, kwargs: Any, out: Any) -> None:
        tensors = [*_flat(args), *_flat((out,))]
        outcome.flops = facts.flops(args, kwargs, out)
        outcome.moved_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        outcome.dtype = next((str(tensor.dtype)[6:] for tensor in tensors if tensor.is_floating_point()), "")
        if facts.scratch is not None:
            outcome.scratch_bytes, outcome.buffers, outcome.workspace = taken(facts.scratch(args, kwargs, out))

    def _record(
        self, recording: Recording, facts: Facts, args: Any, kwargs: Any, out: Any, outcome: shapes.Outcome | None
    ) -> None:
        live = recording.live
        module, recomputed = self._where(recording.phase)
        reads = [recording.index_of(self._fake(tensor)) for tensor in _flat(args)]
        writes: list[int] = []
        fresh = 0
        for tensor in _flat((out,)):
            if tensor.layout != torch.strided:
                raise Untraceable(f"{facts.name} in {module or self.last_module or 'the model'} makes a sparse tensor",
                                  "use dense gradients (sparse=False), or allow one real step to be measured instead")
            storage = tensor.untyped_storage()
            index = live.get(storage._cdata)
            if index is None:
                fresh = storage._cdata
                index = recording.birth(storage, tensor, module, facts.name, resident=False)
            writes.append(index)
        if not fresh and not facts.mutable:
            if type(out) is FakeTensor:
                setattr(out, "_memfit_view", True)  # noqa: B010 - an attribute that the class does not declare
            return
        self._just_made = fresh or self._just_made
        self.last_module = module or self.last_module
        if recording.phase == "forward" and (facts.writes or "out" in kwargs):
            targets = [*(args[place] for place in facts.writes if place < len(args)), kwargs.get("out")]
            recording.written.update(recording.index_of(tensor) for tensor in _flat(targets))
        if outcome is None:
            outcome = shapes.Outcome((), tuple, False, False)
            self._cost(outcome, facts, args, kwargs, out)
        recording.operator((facts.name, recording.phase, module, outcome.flops, outcome.moved_bytes,
                            outcome.scratch_bytes, outcome.dtype, recomputed, tuple(reads), tuple(writes),
                            outcome.buffers, outcome.workspace, torch._C._current_autograd_node() is not None))

    def _fake(self, tensor: Any) -> Any:
        """A real tensor that the loss holds, as the fake that torch put in its place. It is the user's, not the job's: it
        counts no bytes."""
        if isinstance(tensor, FakeTensor):
            return tensor
        fake = self.from_tensor(tensor, static_shapes=True)
        if self.recording is not None and fake.untyped_storage()._cdata not in self.recording.live:
            self._held.append(fake)
            self.recording.storages[self.recording.index_of(fake)][0] = 0
        return fake

    def _where(self, phase: str) -> tuple[str, bool]:
        """The module that an operator belongs to, and whether it is forward work done again in backward."""
        module = self.module
        node = torch._C._current_autograd_node() if phase == "backward" else None
        if node is None or module or torch.is_grad_enabled():  # forward work; inside a node it is done again
            if phase == "forward" or node is not None:
                self._module_of_node.setdefault(_autograd._get_sequence_nr() - 1, module)
            return module, node is not None
        variable = getattr(node, "variable", None)  # the node that accumulates into a parameter's gradient
        if variable is not None:
            return self.owners.get(id(variable), ""), False
        return self._module_of_node.get(node._sequence_nr(), ""), False


def _flat(tree: Any) -> Iterator[Any]:
    for value in tree:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)
