"""Tensors that are not on the device: made, filled and brought back by the same code for a real job and a fake one.

On disk they are mapped files (see `mapped`); on the host beside a card, pinned memory, of which CUDA takes powers of two
(https://pytorch.org/docs/stable/notes/cuda.html, pinned memory).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memfit.core.errors import UsageError
from memfit.hardware.disks import free_disk_bytes, offload_folder, why_unsuitable
from memfit.jobs import mapped
from memfit.jobs.away import DISK, HOST, born, is_away, mark

_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)


class Store:
    """Makes tensors in one place, at most `limit_bytes` in all (default: what the folder's disk has free, less a margin).

    Raises UsageError for a place that there is not, and for a folder that is in memory.
    """

    def __init__(self, place: str, folder: str = "", limit_bytes: int | None = None) -> None:
        if place not in (HOST, DISK):
            raise UsageError(f"there is no place {place!r} to move memory to", f"{DISK}, or {HOST} beside a card")
        self.place, self.folder = place, offload_folder(folder)
        reason = why_unsuitable(self.folder) if place == DISK else None
        if reason:
            raise UsageError(f"memory cannot be moved to disk: {reason}",
                             "name a folder on a disk: the plan's folder, or TMPDIR")
        self._limit_bytes = limit_bytes
        self.made_bytes = 0

    def empty(self, like: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A dense tensor in the place; fake where `like` is. A mapped one is all zero. Raises UsageError above the limit."""
        count = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if all(size) else 0
        nbytes = count * dtype.itemsize
        if isinstance(like, FakeTensor):
            with born(self.place), torch.no_grad():
                made = like.new_empty_strided(tuple(size), tuple(stride), dtype=dtype)
            mark(made.untyped_storage(), self.place)
            return made
        flat = self._bytes(max(nbytes, 1))
        return torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), 0, tuple(size), tuple(stride))

    def _bytes(self, nbytes: int) -> torch.Tensor:
        self._check(nbytes)
        made = (mapped.mapped_bytes(nbytes, self.folder) if self.place == DISK
                else torch.empty(1 << (nbytes - 1).bit_length(), dtype=torch.uint8, pin_memory=torch.cuda.is_available()))
        mark(made.untyped_storage(), self.place)
        self.made_bytes += nbytes
        return made

    def _check(self, nbytes: int) -> None:
        if self.place == DISK and self._limit_bytes is None:
            self._limit_bytes = free_disk_bytes(self.folder)
        if self._limit_bytes is not None and self.made_bytes + nbytes > self._limit_bytes:
            raise UsageError(f"{self.made_bytes + nbytes} bytes would go to {self.place}, and it may take {self._limit_bytes}",
                             "give it more room, or move less")


def can_move(value: Any) -> bool:
    """Whether a value is a plain tensor with bytes of its own that are on the device: no wrapper, nothing sparse."""
    return (type(value) in _PLAIN and value.layout == torch.strided and value.device.type != "meta"
            and not value.is_quantized and not is_away(value))


def moved(value: torch.Tensor, store: Store) -> torch.Tensor:
    """A copy of a tensor in the store's place."""
    with torch.no_grad():
        source = value if is_dense(value) else value.contiguous()
        made = store.empty(value, source.shape, source.stride(), value.dtype)
        made.copy_(source)
    return made


def brought_back(value: torch.Tensor) -> torch.Tensor:
    """A copy on the device's side of the same memory (`clone`): an ordinary tensor."""
    with torch.no_grad():
        return value.clone()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie one after another, in whatever order of dimensions."""
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda pair: (pair[1], pair[0])):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


@contextmanager
def zeros_away(store: Store, least_bytes: int) -> Iterator[None]:
    """Inside, `torch.zeros_like` of a large plain tensor makes one in the store's place, not on the device."""
    with _ZerosAway(store, least_bytes):
        yield


class _ZerosAway(torch.overrides.TorchFunctionMode):
    def __init__(self, store: Store, least_bytes: int) -> None:
        super().__init__()
        self._store, self._least_bytes = store, least_bytes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.zeros_like and self._serves(args[0], **kwargs):
            like, dtype = args[0], kwargs.get("dtype") or args[0].dtype
            made = self._store.empty(like, like.shape, like.stride(), dtype)
            return made if self._store.place == DISK else made.zero_()
        return func(*args, **kwargs)

    def _serves(self, like: Any, dtype: torch.dtype | None = None, memory_format: Any = torch.preserve_format,
                **others: Any) -> bool:
        if others or memory_format is not torch.preserve_format or not (can_move(like) and is_dense(like)):
            return False
        return like.numel() * (dtype or like.dtype).itemsize >= self._least_bytes
