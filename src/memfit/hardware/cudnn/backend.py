"""cuDNN's graph interface through ctypes: which engines a library would try for a convolution, and what each takes.

Numbers are those of cudnn_graph.h. Needs cuDNN 9.8, whose device properties descriptor lets a query describe a card that
is not there (NVIDIA, "Deviceless Ahead-of-time Compilation"). Errors of the library are `CudnnError`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from memfit.hardware.cudnn.question import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, ConvolutionCall, Sides

FIRST_VERSION = 90800
TENSOR_CORE, DOWN_CONVERT, NONDETERMINISTIC = 0, 1, 4  # numerical notes

_CONVOLUTION, _ENGINE, _CONFIG, _HEURISTIC, _GRAPH, _TENSOR, _PROPERTIES = 1, 2, 3, 4, 15, 17, 38
_DATA_TYPE, _BOOL, _INT64, _FLOAT, _DOUBLE, _MODE, _HEUR, _NOTE, _DESCRIPTOR, _CHAR = 1, 2, 3, 4, 5, 7, 8, 11, 15, 24
_INSTANT, _FALLBACK = 0, 2
_DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
_ALIGNMENT = 32  # PyTorch looks no further; its allocator gives 512
_MOST_CONFIGS = 128
_OPERATIONS = {FORWARD: (10, 700), BACKWARD_WEIGHT: (11, 712), BACKWARD_DATA: (12, 706)}


class CudnnError(Exception):
    """A call of the library did not succeed."""


class Configuration(NamedTuple):
    """One engine with its settings: its number, bytes of workspace, and numerical notes."""

    engine: int
    workspace_bytes: int
    notes: tuple[int, ...]


class Library:
    """A loaded cuDNN. Raises CudnnError if the file is none or is older than 9.8."""

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
            version = self._library.cudnnGetVersion
        except (OSError, AttributeError) as error:
            raise CudnnError(f"{path}: {error}") from None
        version.restype = ctypes.c_size_t
        self.version = int(version())
        if self.version < FIRST_VERSION:
            raise CudnnError(f"cuDNN {self.version} cannot be asked about a card that is not here")
        for name, kinds in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = kinds, ctypes.c_int

    def configurations(self, call: ConvolutionCall, properties: str) -> list[Configuration]:
        """What cuDNN proposes for the call on that card, in the order in which PyTorch tries it: instant heuristics,
        then the fallback list. Nothing is left out here."""
        with ExitStack() as stack:
            card = stack.enter_context(self._descriptor(_PROPERTIES))
            text = properties.encode()
            self._set(card, 2702, _CHAR, ctypes.create_string_buffer(text, len(text)), len(text))
            self._finalize(card)
            graph = self._graph(stack, call)
            return [config for mode in (_INSTANT, _FALLBACK) for config in self._asked(stack, graph, card, mode)]

    def _graph(self, stack: ExitStack, call: ConvolutionCall) -> Any:
        kind, first = _OPERATIONS[call.direction]
        x, y, w = (self._tensor(stack, call, sides, name) for sides, name in ((call.x, "x"), (call.y, "y"), (call.w, "w")))
        operation = stack.enter_context(self._descriptor(kind))
        convolution = self._convolution(stack, call)
        double = call.dtype == "float64"
        for offset, value in ((0, 1.0), (1, 0.0)):
            number = (ctypes.c_double if double else ctypes.c_float)(value)
            self._set(operation, first + offset, _DOUBLE if double else _FLOAT, ctypes.byref(number))
        for offset, part in enumerate((convolution, w, x, y), start=2):  # the same order in all three
            self._set_descriptor(operation, first + offset, part)
        self._finalize(operation)
        graph = stack.enter_context(self._descriptor(_GRAPH))
        self._set_descriptor(graph, 801, operation)
        self._finalize(graph)
        return graph

    def _tensor(self, stack: ExitStack, call: ConvolutionCall, sides: Sides, name: str) -> Any:
        tensor = stack.enter_context(self._descriptor(_TENSOR))
        self._set(tensor, 901, _DATA_TYPE, ctypes.byref(ctypes.c_int(_DTYPES[call.dtype])))
        self._set_numbers(tensor, 902, sides)
        self._set_numbers(tensor, 903, strides(sides, call.channels_last))
        self._set_numbers(tensor, 906, (ord(name),))
        self._set_numbers(tensor, 900, (_ALIGNMENT,))
        self._finalize(tensor)
        return tensor

    def _convolution(self, stack: ExitStack, call: ConvolutionCall) -> Any:
        convolution = stack.enter_context(self._descriptor(_CONVOLUTION))
        compute = _DTYPES["float64" if call.dtype == "float64" else "float32"]
        self._set(convolution, 100, _DATA_TYPE, ctypes.byref(ctypes.c_int(compute)))
        self._set(convolution, 101, _MODE, ctypes.byref(ctypes.c_int(1)))  # cross-correlation
        self._set_numbers(convolution, 106, (len(call.stride),))
        for attribute, numbers in ((102, call.dilation), (103, call.stride), (104, call.padding), (105, call.padding)):
            self._set_numbers(convolution, attribute, numbers)
        self._finalize(convolution)
        return convolution

    def _asked(self, stack: ExitStack, graph: Any, card: Any, mode: int) -> Iterator[Configuration]:
        heuristic = stack.enter_context(self._descriptor(_HEURISTIC))
        self._set_descriptor(heuristic, 201, graph)
        self._set(heuristic, 200, _HEUR, ctypes.byref(ctypes.c_int(mode)))
        self._set_descriptor(heuristic, 204, card)
        try:
            self._finalize(heuristic)
        except CudnnError:  # no engine of this kind
            return
        count = self._get(heuristic, 202, _DESCRIPTOR, 0, None)
        made = [stack.enter_context(self._descriptor(_CONFIG)) for _ in range(min(count, _MOST_CONFIGS))]
        for config in made[: self._get_descriptors(heuristic, 202, made)]:
            try:
                yield self._read(stack, config)
            except CudnnError:  # a configuration that cannot be built is skipped, as PyTorch skips it
                continue

    def _read(self, stack: ExitStack, config: Any) -> Configuration:
        size = ctypes.c_int64()
        self._get(config, 303, _INT64, 1, ctypes.byref(size))
        engine = stack.enter_context(self._descriptor(_ENGINE))
        self._get_descriptors(config, 300, [engine])
        index = ctypes.c_int64()
        self._get(engine, 1301, _INT64, 1, ctypes.byref(index))
        notes = (ctypes.c_int * 16)()
        count = self._get(engine, 1303, _NOTE, 16, notes)
        return Configuration(int(index.value), int(size.value), tuple(notes[:count]))

    # -- the library's calls --------------------------------------------------------------------------------------

    @contextmanager
    def _descriptor(self, kind: int) -> Iterator[Any]:
        made = ctypes.c_void_p()
        _check(self._library.cudnnBackendCreateDescriptor(kind, ctypes.byref(made)), f"descriptor {kind}")
        try:
            yield made
        finally:
            self._library.cudnnBackendDestroyDescriptor(made)

    def _finalize(self, descriptor: Any) -> None:
        _check(self._library.cudnnBackendFinalize(descriptor), "finalize")

    def _set(self, descriptor: Any, attribute: int, kind: int, value: Any, count: int = 1) -> None:
        _check(self._library.cudnnBackendSetAttribute(descriptor, attribute, kind, count, value), f"attribute {attribute}")

    def _set_numbers(self, descriptor: Any, attribute: int, numbers: Sequence[int]) -> None:
        self._set(descriptor, attribute, _INT64, (ctypes.c_int64 * len(numbers))(*numbers), len(numbers))

    def _set_descriptor(self, descriptor: Any, attribute: int, value: Any) -> None:
        self._set(descriptor, attribute, _DESCRIPTOR, ctypes.byref(value))

    def _get(self, descriptor: Any, attribute: int, kind: int, most: int, into: Any) -> int:
        count = ctypes.c_int64()
        _check(self._library.cudnnBackendGetAttribute(descriptor, attribute, kind, most, ctypes.byref(count), into),
               f"attribute {attribute}")
        return min(most, int(count.value)) if most else int(count.value)

    def _get_descriptors(self, descriptor: Any, attribute: int, into: Sequence[Any]) -> int:
        array = (ctypes.c_void_p * len(into))(*(one.value for one in into))
        return self._get(descriptor, attribute, _DESCRIPTOR, len(into), array)


_POINTER = ctypes.c_void_p
_SIGNATURES: dict[str, list[Any]] = {
    "cudnnBackendCreateDescriptor": [ctypes.c_int, _POINTER],
    "cudnnBackendDestroyDescriptor": [_POINTER],
    "cudnnBackendFinalize": [_POINTER],
    "cudnnBackendSetAttribute": [_POINTER, ctypes.c_int, ctypes.c_int, ctypes.c_int64, _POINTER],
    "cudnnBackendGetAttribute": [_POINTER, ctypes.c_int, ctypes.c_int, ctypes.c_int64, _POINTER, _POINTER],
}


def strides(sides: Sides, channels_last: bool) -> Sides:
    """Elements between neighbours along each side of a dense tensor."""
    order = [*range(len(sides))]
    if channels_last:
        order = [0, *order[2:], 1]
    found, step = [0] * len(sides), 1
    for side in reversed(order):
        found[side] = step
        step *= sides[side]
    return tuple(found)


def _check(status: int, what: str) -> None:
    if status != 0:
        raise CudnnError(f"cuDNN status {status}: {what}")
