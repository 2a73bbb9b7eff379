"""Tensors in safetensors files, written and read one at a time, so that neither needs more memory than one tensor.

(torch's own mapped loading counts as private memory of the process, and so against an enforced limit.)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from memfit.core.errors import UsageError

_CODES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.complex64: "C64",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_CHUNK_BYTES = 16 * 2**20
_READ_ADVICE = "give a folder that a run has saved to"


def can_write(tensor: torch.Tensor) -> bool:
    """Whether the format holds this tensor: strided, of a common dtype, no wrapper of other tensors."""
    return (tensor.layout == torch.strided and tensor.dtype in _CODES
            and not hasattr(tensor, "__tensor_flatten__") and not tensor.is_quantized)


class TensorWriter:
    """Adds tensors to a file as they come; the header is written at the end, into room kept for `names`.

    A name that is added again replaces the first. Raises UsageError if the file cannot be written.
    """

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        self._header_bytes = -(-(1024 + sum(4 * len(name) + 160 for name in names)) // 8) * 8
        self._index: dict[str, dict[str, Any]] = {}
        self._path, self._size = path, 0
        try:
            self._file = open(path, "wb")  # noqa: SIM115 - closed by close()
            self._file.seek(8 + self._header_bytes)
        except OSError as error:
            raise _cannot(path, error) from None

    @property
    def names(self) -> set[str]:
        return set(self._index)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Write the tensor's values now; a contiguous one on the CPU is not copied."""
        plain = tensor.detach().to("cpu").contiguous()
        try:
            self._file.write(_bytes_of(plain))
        except OSError as error:
            raise _cannot(self._path, error) from None
        self._index[name] = {"dtype": _CODES[plain.dtype], "shape": list(plain.shape),
                             "data_offsets": [self._size, self._size + plain.nbytes]}
        self._size += plain.nbytes

    def close(self) -> None:
        header = json.dumps(self._index).encode()
        if len(header) > self._header_bytes:
            raise ValueError(f"header of {len(header)} bytes for {self._path}, room for {self._header_bytes}")
        try:
            self._file.seek(0)
            self._file.write(self._header_bytes.to_bytes(8, "little") + header.ljust(self._header_bytes))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            raise _cannot(self._path, error) from None

    def __enter__(self) -> TensorWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *others: object) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write them all, one at a time. Raises UsageError if the file cannot be written."""
    with TensorWriter(path, tensors) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)


class TensorFile:
    """Reads single tensors of a safetensors file. Raises UsageError for a file that is missing or is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 0 < length <= os.fstat(file.fileno()).st_size:
                    raise ValueError("no header")
                self._index: dict[str, dict[str, Any]] = json.loads(file.read(length))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}", _READ_ADVICE) from None
        except ValueError:
            raise UsageError(f"{path} is not a whole safetensors file", _READ_ADVICE) from None
        self._index.pop("__metadata__", None)
        self._start = 8 + length

    def names(self) -> list[str]:
        return list(self._index)

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._index[name]["shape"])

    def dtype(self, name: str) -> torch.dtype:
        return _DTYPES[self._index[name]["dtype"]]

    def read(self, name: str) -> torch.Tensor:
        """A fresh tensor with the values of `name`."""
        tensor = torch.empty(self.shape(name), dtype=self.dtype(name))
        self._fill(name, tensor)
        return tensor

    def read_into(self, name: str, target: torch.Tensor) -> None:
        """Fill `target` (same shape and dtype) without a copy if it is contiguous on the CPU.

        Raises UsageError if shape or dtype differ.
        """
        if tuple(target.shape) != self.shape(name) or target.dtype != self.dtype(name):
            raise UsageError(f"{name} in {self._path} is {self.dtype(name)} {list(self.shape(name))}, "
                             f"the job's is {target.dtype} {list(target.shape)}", "resume the job that wrote it")
        with torch.no_grad():
            if target.device.type == "cpu" and target.is_contiguous():
                self._fill(name, target.detach())
            else:
                target.copy_(self.read(name))

    def _fill(self, name: str, tensor: torch.Tensor) -> None:
        start, stop = self._index[name]["data_offsets"]
        view = _bytes_of(tensor)
        with open(self._path, "rb", buffering=0) as file:
            file.seek(self._start + start)
            done = 0
            while done < stop - start:
                got = file.readinto(view[done : min(done + _CHUNK_BYTES, stop - start)])
                if not got:
                    raise UsageError(f"{self._path} ends in the middle of {name}", "resume from an earlier checkpoint")
                done += got


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The values as writable bytes, not copied; the tensor is contiguous and on the CPU."""
    if tensor.numel() == 0:
        return memoryview(bytearray())
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _cannot(path: Path, error: OSError) -> UsageError:
    return UsageError(f"cannot write {path}: {error.strerror or error}",
                      "choose another folder with --out, or make room")
