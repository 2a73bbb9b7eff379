"""A storage whose bytes are those of a file: shared pages, which the system writes back and takes when it needs memory.

They are neither anonymous memory of the process nor private data (what `RLIMIT_DATA` bounds). The file has no name any more
when it is used, so that it is gone with the last tensor on it. It is mapped here and not by `UntypedStorage.from_file`, whose
mappings torch's profiler counts as memory of the device.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import tempfile
import weakref
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from memfit.core.errors import UsageError

_POPULATE_WRITE = 23  # Linux 5.14: one fault for many pages; older kernels refuse it, which does no harm
WILL_NEED = mmap.MADV_WILLNEED if hasattr(mmap, "MADV_WILLNEED") else 3
_WAIT = 4 if sys.platform == "linux" else 0x10  # MS_SYNC
_FAILED = ctypes.c_void_p(-1).value


def mapped_bytes(nbytes: int, folder: Path) -> torch.Tensor:
    """Bytes (`uint8`, all zero) in a file of its own in the folder, room for which is made now.

    Raises UsageError if the folder cannot be written to or the disk is full.
    """
    try:
        descriptor, path = tempfile.mkstemp(prefix="memfit-", dir=folder)
        try:
            os.unlink(path)
            _make_room(descriptor, nbytes)
            address = _map(descriptor, nbytes)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _cannot(nbytes, folder, error) from None
    advise(address, nbytes, _POPULATE_WRITE)
    pages: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(pages, _unmap, address, nbytes)
    return torch.frombuffer(pages, dtype=torch.uint8)


def advise(address: int, nbytes: int, advice: int) -> None:
    """Tell the system how pages will be used; what it makes of that is its own business."""
    start = address - address % mmap.PAGESIZE
    _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(nbytes + address - start), advice)


def write_back(address: int, nbytes: int) -> None:
    """Wait until what was written to the pages is on the disk; `address` is the start of a page."""
    _libc().msync(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), _WAIT)


def _make_room(descriptor: int, nbytes: int) -> None:
    """A write to a page that the disk has no room for would end the process: ask now."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)
    else:
        os.ftruncate(descriptor, nbytes)


def _map(descriptor: int, nbytes: int) -> int:
    address = _libc().mmap(None, ctypes.c_size_t(nbytes), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor,
                           ctypes.c_long(0))
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address


def _unmap(address: int, nbytes: int) -> None:
    _libc().munmap(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))


@lru_cache(maxsize=1)
def _libc() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    return library


def _cannot(nbytes: int, folder: Path, error: OSError) -> UsageError:
    what = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
    return UsageError(f"cannot move {nbytes} bytes to a file in {folder}: {what}",
                      "make room there, or set TMPDIR or the plan's folder to one on another disk")
