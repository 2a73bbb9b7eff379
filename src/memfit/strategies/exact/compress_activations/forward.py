"""A forward whose saved tensors are compressed as soon as only autograd holds them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.strategies.exact.compress_activations import needs
from memfit.strategies.exact.compress_activations.graph import kind_of, saves_results, tensors_in, views
from memfit.strategies.exact.compress_activations.needs import KEPT, VALUE, Need
from memfit.strategies.exact.compress_activations.saved import LEAST_BYTES, Born, Handle, Saved

_PLAIN = (torch.Tensor, FakeTensor)
_UPDATES_BUFFERS = frozenset({"native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"})
_COPIES = frozenset({"_to_copy", "clone"})


@dataclass(frozen=True)
class _Last:
    """The operator that ran last: what it needs of its result if it saves it, and results that it has not saved so far."""

    func: Any = None
    name: str = ""
    need: Need = KEPT
    results: set[int] = field(default_factory=set)


class Ledger:
    """The storages that one forward made, and those of them that autograd saved.

    Autograd saves an operator's arguments just before it runs, and its results just after. So a saved result is the last
    operator's, and all else that was saved since belongs to the next one.
    """

    def __init__(self, bits: int | None) -> None:
        self.saving = False  # what is called now is our own
        self._bits = bits
        self._born: dict[int, Born] = {}
        self._waiting: list[weakref.ref[Saved]] = []
        self._arguments: list[tuple[int, Handle]] = []
        self._last = _Last()

    def save(self, tensor: torch.Tensor) -> Any:
        """The pack hook."""
        if type(tensor) not in _PLAIN or tensor.layout != torch.strided or tensor.is_complex():
            return tensor
        address = tensor.untyped_storage()._cdata
        born = self._find(address)
        if born is None or tensor.untyped_storage().nbytes() < LEAST_BYTES:
            return tensor
        saved = self._saved(tensor, born)
        if saved is None:
            return tensor
        handle = Handle(saved, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset()))
        own = self._need_of_own(address, tensor)
        if own is not None:
            handle.settle(own)
        elif not tensor.is_floating_point() and born.range is not None:
            handle.settle(VALUE)
        else:
            self._arguments.append((address, handle))
        return handle

    def before(self, name: str, args: Any) -> None:
        """An operator is about to run: it is known whose arguments were saved, and what the forward has let go."""
        if self._arguments:
            given = {tensor.untyped_storage()._cdata for tensor in tensors_in(args)}
            if needs.saves_clone(name) and self._last.name == "clone":
                given |= self._last.results
            times = Counter(address for address, _ in self._arguments)
            for address, handle in self._arguments:
                self._settle(name, args, handle, times[address] if address in given else 0)
            self._arguments.clear()
        self._compress()

    def after(self, func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
        """An operator has run: note what it made, or what it did to what was there."""
        results: set[int] = set()
        if func._schema.is_mutable and name not in _UPDATES_BUFFERS:
            self._written(func, name, args, kwargs, results)
        elif not views(func):
            for index, tensor in enumerate(out if isinstance(out, (tuple, list)) else (out,)):
                if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                    self._note(tensor, name, args, index, results)
        self._last = _Last(func, name, needs.of_output(name, args), results)

    def close(self) -> None:
        """The forward is over: from now on only what autograd packed keeps anything alive."""
        for _, handle in self._arguments:
            handle.settle(KEPT)
        self._arguments.clear()
        self._last = _Last()
        self._compress()
        self._waiting.clear()
        self._born.clear()

    def _find(self, address: int) -> Born | None:
        born = self._born.get(address)
        if born is not None and born.storage() is None:  # the address was reused by another storage
            del self._born[address]
            return None
        return born

    def _saved(self, tensor: torch.Tensor, born: Born) -> Saved | None:
        saved = born.saved() if born.saved is not None else None
        if saved is None:
            self.saving = True
            try:
                saved = Saved(tensor, born)
            finally:
                self.saving = False
            born.saved = weakref.ref(saved)
            self._waiting.append(born.saved)
        return saved if saved.held is not None and saved.dtype == tensor.dtype else None

    def _need_of_own(self, address: int, tensor: torch.Tensor) -> Need | None:
        """What the last operator needs of its result, if it is the one that saves it here; None if that is the next one."""
        last, node = self._last, tensor.grad_fn
        if address not in last.results or node is None:
            return None
        if kind_of(node) != f"{last.name.replace('_', '')}backward":
            need = KEPT  # somebody else's result: a function of the user's own, a write into a view
        elif not saves_results(type(node), last.func):
            return None
        else:
            need = last.need
        last.results.discard(address)
        return need

    def _settle(self, name: str, args: Any, handle: Handle, times: int) -> None:
        """`times`: how often the storage was saved for this operator, if it is an argument; saved twice, one may be not its."""
        if not handle.saved.dtype.is_floating_point:
            if times:
                handle.saved.widen(needs.range_of_argument(name, args))
            handle.settle(VALUE)
        elif times and torch.is_grad_enabled():
            handle.settle(needs.of_input(name, args) if times == 1 else VALUE)
        else:
            handle.settle(KEPT)

    def _compress(self) -> None:
        left: list[weakref.ref[Saved]] = []
        for reference in self._waiting:
            saved = reference()
            if saved is None:
                continue
            if saved.only_ours():
                saved.compress(self._bits)
            else:
                left.append(reference)
        self._waiting = left

    def _note(self, tensor: torch.Tensor, name: str, args: Any, index: int, results: set[int]) -> None:
        storage = tensor.untyped_storage()
        if storage.nbytes() < LEAST_BYTES:
            return
        scalings = () if needs.draws_bits(name, args) else None
        limits = None if tensor.is_floating_point() else needs.range_of_output(name, args, index)
        copied = name in _COPIES and self._is_another(args[0])  # of a parameter, as autocast makes them
        self._born[storage._cdata] = Born(weakref.ref(storage), index > 0 or copied, scalings, limits)
        if index == 0:
            results.add(storage._cdata)

    def _is_another(self, tensor: torch.Tensor) -> bool:
        """Whether it is none of this forward's results, or a copy of such a one."""
        born = self._find(tensor.untyped_storage()._cdata)
        return born is None or born.auxiliary

    def _written(self, func: Any, name: str, args: Any, kwargs: Any, results: set[int]) -> None:
        target = kwargs.get("out", args[0] if args else None)
        if not isinstance(target, torch.Tensor) or target.layout != torch.strided:
            return
        address = target.untyped_storage()._cdata
        born = self._find(address)
        if born is None:
            return
        whole = target.numel() * target.element_size() == target.untyped_storage().nbytes()
        scalings = None
        if whole and needs.draws_bits(name, args):
            scalings = ()
        elif whole and born.scalings is not None and needs.scales(name, args):
            scalings = (*born.scalings, (func, args[1:]))
        self._born[address] = Born(born.storage, born.auxiliary, scalings)
        results.add(address)


class Watching(TorchDispatchMode):
    """Tells the ledger about every operator of a forward."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._ledger.saving or func.namespace == "prim":  # asking a fake for its device is an operator, too
            return func(*args, **kwargs)
        name = func._overloadpacket.__name__
        self._ledger.before(name, args)
        out = func(*args, **kwargs)
        self._ledger.after(func, name, args, kwargs, out)
        return out


@contextmanager
def compressing(bits: int | None = None) -> Iterator[None]:
    """One forward whose saved tensors are compressed: exactly, or floating-point numbers to `bits`."""
    ledger = Ledger(bits)
    try:
        with torch.autograd.graph.saved_tensors_hooks(ledger.save, _unpack), Watching(ledger):
            yield
    finally:
        with torch.no_grad():
            ledger.close()


def _unpack(packed: Any) -> torch.Tensor:
    return packed.unpack() if isinstance(packed, Handle) else packed
