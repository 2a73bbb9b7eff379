"""LSTM, GRU and plain recurrent layers on a card: one call of cuDNN for all layers and time steps.

After aten/src/ATen/native/cudnn/RNN.cpp, native/RNN.cpp and autocast_mode (`_cudnn_rnn_cast_reflatten`). A forward gives
output, last states and a reserve that backward reads; weights are one buffer, and so are their gradients. On the CPU the
same layers are many operators, so they are taken over where PyTorch chooses: before they are taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memfit.trace.cuda.libraries import flags
from memfit.trace.cuda.recurrent_sizes import Layers, reserve_bytes, workspace
from memfit.trace.cuda.registering import AUTOCAST, Overrides, composite, without_autocast
from memfit.trace.cuda.sizes import Elastic, Taken
from memfit.trace.cuda.target import CudaTarget
from memfit.trace.kernels.sizes import nbytes

aten: Any = torch.ops.aten
_CPU = torch.device("cpu")
_RELU, _TANH, _LSTM, _GRU = range(4)
_NETS = (("rnn_relu", _RELU), ("rnn_tanh", _TANH), ("lstm", _LSTM), ("gru", _GRU))
_TAKEN = (torch.float32, torch.float16, torch.float64)
_TAKES_BFLOAT16 = (2, 10)  # at the latest; before, bfloat16 goes step by step through torch's own cells


def register(overrides: Overrides, target: CudaTarget) -> None:
    """Put the layers in place for the time of a trace."""
    for name, mode in _NETS:
        packet = getattr(aten, name)
        overrides.add_on_fakes(f"{name}.input", packet.input, _padded(packet.input, mode, target))
        overrides.add_on_fakes(f"{name}.data", packet.data, _packed(packet.data, mode, target))
    overrides.add("_cudnn_rnn", _cast_down, AUTOCAST)


def _padded(overload: Any, mode: int, target: CudaTarget) -> Callable[..., Any]:
    def layer(x: Any, states: Any, params: Any, biases: bool, layers: int, dropout: float, train: bool, both: bool,
              batch_first: bool) -> Any:
        if not _acceptable(x, target):
            return composite(overload, x, states, params, biases, layers, dropout, train, both, batch_first)
        return _call(x, states, params, biases, layers, dropout, train, both, mode, batch_first, [])

    return layer


def _packed(overload: Any, mode: int, target: CudaTarget) -> Callable[..., Any]:
    def layer(data: Any, batch_sizes: Any, states: Any, params: Any, biases: bool, layers: int, dropout: float, train: bool,
              both: bool) -> Any:
        if not _acceptable(data, target):
            return composite(overload, data, batch_sizes, states, params, biases, layers, dropout, train, both)
        first = states[0] if mode == _LSTM else states
        sizes = _batches(data.shape[0], batch_sizes.shape[0], first.shape[1])
        return _call(data, states, params, biases, layers, dropout, train, both, mode, False, sizes)

    return layer


def _call(x: Any, states: Any, params: Any, biases: bool, layers: int, dropout: float, train: bool, both: bool, mode: int,
          batch_first: bool, batch_sizes: list[int]) -> Any:
    hidden, cell = states if mode == _LSTM else (states, None)
    side, projected = hidden.shape[2], 0
    if cell is not None and cell.shape[2] != side:
        side, projected = cell.shape[2], side
    each = (4 if biases else 2) + (1 if projected else 0)
    output, hy, cy, *_ = aten._cudnn_rnn.default(
        x, params, each, None, hidden, cell, mode, side, projected, layers, batch_first, dropout, train, both, batch_sizes,
        None)
    return (output, hy, cy) if mode == _LSTM else (output, hy)


def _acceptable(x: Any, target: CudaTarget) -> bool:
    """`cudnn_is_acceptable`."""
    taken = x.dtype in _TAKEN or (x.dtype is torch.bfloat16 and target.torch_version >= _TAKES_BFLOAT16)
    return flags().enabled and taken and x.numel() > 0


def _batches(rows: int, steps: int, batch: int) -> list[int]:
    """Sizes of a packed sequence's steps; only how many there are and their sum matter."""
    rest, others = rows - batch, max(1, steps - 1)
    return [batch, *(rest // others + (1 if place < rest % others else 0) for place in range(steps - 1))]


def _cast_down(x: Any, weight: Sequence[Any], each: int, buffer: Any, hidden: Any, cell: Any, *others: Any) -> Any:
    """Under autocast everything is half, whatever the chosen type is; the weights are copied into one new buffer."""
    with without_autocast():
        if weight[0].dtype is not torch.float16:
            buffer = torch.zeros(sum(w.numel() for w in weight), dtype=torch.float16, device=weight[0].device)
            weight = [_copied(buffer, start, w) for start, w in zip(_starts(weight), weight, strict=True)]
        x, hidden, cell = (t if t is None else t.to(torch.float16) for t in (x, hidden, cell))
        return aten._cudnn_rnn.default(x, weight, each, buffer, hidden, cell, *others)


def _copied(buffer: Any, start: int, weight: Any) -> Any:
    return buffer[start: start + weight.numel()].view(weight.shape).detach().copy_(weight)


def _starts(weights: Sequence[Any]) -> list[int]:
    starts, at = [], 0
    for weight in weights:
        starts.append(at)
        at += weight.numel()
    return starts


# -- what the two operators give and take ---------------------------------------------------------------------------------


def _layers(args: Any, after: int) -> Layers:
    """Of `_cudnn_rnn` (`after` = 6) or its backward (10): where the mode stands among the arguments."""
    x, weight, hidden = args[0], args[1], args[4]
    mode, side, projected, count, _, dropout, train, both, batch_sizes = args[after: after + 9]
    rows = x.shape[0] if batch_sizes else x.shape[0] * x.shape[1]
    return Layers(mode=mode, rows=rows, batch=hidden.shape[1], hidden=side, projected=projected or side, count=count,
                  directions=2 if both else 1, itemsize=x.element_size(), train=train, dropout=dropout,
                  weight_bytes=sum(map(nbytes, weight)))


def forward(mode: Any, args: Any, kwargs: Any) -> Any:
    """Output, last states, reserve, and the buffer of weights."""
    x, weight, _, buffer, hidden, cell = args[:6]
    batch_first, packed = args[10], bool(args[14])
    layers = _layers(args, 6)
    wide = layers.directions * layers.projected
    shape = (x.shape[0], wide) if packed else (*(x.shape[:2] if not batch_first else (x.shape[1], x.shape[0])), wide)
    output = torch.empty(shape, dtype=x.dtype, device="meta")
    if batch_first and not packed:
        output = output.transpose(0, 1)
    states = [torch.empty(t.shape if t is not None else (0,), dtype=hidden.dtype, device="meta") for t in (hidden, cell)]
    reserve = torch.empty(reserve_bytes(layers), dtype=torch.uint8, device="meta")
    made = [FakeTensor(mode, one, _CPU) for one in (output, *states, reserve)]
    return (*made, _alias(mode, weight[0] if buffer is None else buffer))


def backward(mode: Any, args: Any, kwargs: Any) -> Any:
    """Gradients of input and states, and of the weights as parts of one buffer."""
    x, weight, _, _, hidden, cell = args[:6]
    batch_first, packed, mask = args[14], bool(args[18]), args[21]
    turned = batch_first and not packed
    d_x = torch.empty((x.shape[1], x.shape[0], x.shape[2]) if turned else x.shape, dtype=x.dtype, device="meta")
    d_x = d_x.transpose(0, 1) if turned else d_x
    states = [None if t is None else torch.empty(t.shape, dtype=t.dtype, device="meta") for t in (hidden, cell)]
    base = torch.empty(sum(w.numel() for w in weight), dtype=weight[0].dtype, device="meta")
    parts = [base[start: start + w.numel()].view(w.shape) for start, w in zip(_starts(weight), weight, strict=True)]
    first = [None if one is None else FakeTensor(mode, one, _CPU) for one in (d_x, *states)]
    return (*first, [FakeTensor(mode, part, _CPU) for part in parts] if mask[3] else [])


def _forward_scratch(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> Taken:
    turned = args[10] and not args[14]
    return _above(_turned_copy(args[0], turned), workspace(_layers(args, 6)))


def _backward_scratch(args: Any, kwargs: Any, out: Any, target: CudaTarget) -> Taken:
    """Input and gradient in order of time while the data's gradients are made; then the input again beside the weights'."""
    turned, grad = args[14] and not args[18], args[7]
    layers = _layers(args, 10)
    x = _turned_copy(args[0], turned)
    zeros = sum(nbytes(of) for of, given in ((args[6], grad), (args[4], args[8]), (args[5], args[9]))
                if given is None and of is not None)
    data = x + zeros + (_turned_copy(grad, turned) if grad is not None else 0)
    weights = layers.weight_bytes if args[21][3] else 0
    return Elastic(*(max(data + size - weights, x + zeros + size) for size in workspace(layers)))


def _turned_copy(tensor: Any, turned: bool) -> int:
    view = tensor.transpose(0, 1) if turned else tensor
    return 0 if view.is_contiguous() else nbytes(tensor)


def _above(copies: int, sizes: Elastic) -> Elastic:
    return Elastic(*(copies + size for size in sizes))


def _alias(mode: Any, tensor: Any) -> Any:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return FakeTensor(mode, made, _CPU)


INSTEAD: dict[Any, Callable[..., Any]] = {aten._cudnn_rnn.default: forward, aten._cudnn_rnn_backward.default: backward}
SCRATCH: dict[Any, Callable[..., Taken]] = {
    aten._cudnn_rnn.default: _forward_scratch, aten._cudnn_rnn_backward.default: _backward_scratch}
