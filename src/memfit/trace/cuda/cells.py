"""`LSTMCell` and `GRUCell` on a card: both products, then one kernel for all gates.

After aten/src/ATen/native/RNN.cpp and native/cuda/RNN.cu: the kernel gives the new states and a workspace for its backward.
autograd keeps both sums of gates as well, which only a second derivative reads (tools/autograd/derivatives.yaml). On the CPU
the same cells are many operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memfit.trace.cuda.registering import Overrides

aten: Any = torch.ops.aten
_CPU = torch.device("cpu")
_GRU_GATES, _GRU_KEPT = 3, 5  # numbers for each hidden unit: gates, and what backward needs


def register(overrides: Overrides) -> None:
    """Put the cells in place for the time of a trace."""
    overrides.add_on_fakes("lstm_cell", aten.lstm_cell.default, _lstm)
    overrides.add_on_fakes("gru_cell", aten.gru_cell.default, _gru)


def _lstm(x: Any, states: Any, w_input: Any, w_hidden: Any, b_input: Any = None, b_hidden: Any = None) -> Any:
    hidden, cell = states
    gates = torch.matmul(x, w_input.t()), torch.matmul(hidden, w_hidden.t())
    return aten._thnn_fused_lstm_cell.default(*gates, cell, b_input, b_hidden)[:2]


def _gru(x: Any, hidden: Any, w_input: Any, w_hidden: Any, b_input: Any = None, b_hidden: Any = None) -> Any:
    gates = torch.matmul(x, w_input.t()), torch.matmul(hidden, w_hidden.t())
    return aten._thnn_fused_gru_cell.default(*gates, hidden, b_input, b_hidden)[0]


def _like(mode: Any, tensor: Any, sides: tuple[int, ...] | None = None) -> FakeTensor:
    return FakeTensor(mode, torch.empty(sides or tuple(tensor.shape), dtype=tensor.dtype, device="meta"), _CPU)


def _lstm_forward(mode: Any, args: Any, kwargs: Any) -> Any:
    gates, cell = args[0], args[2]
    return _like(mode, cell), _like(mode, cell), _like(mode, gates)


def _lstm_backward(mode: Any, args: Any, kwargs: Any) -> Any:
    """Of both sums of gates at once, of the cell, and of the biases."""
    cell, workspace, biased = args[2], args[4], args[5]
    bias = _like(mode, workspace, tuple(workspace.shape[-1:])) if biased else None
    return _like(mode, workspace), _like(mode, cell), bias


def _gru_forward(mode: Any, args: Any, kwargs: Any) -> Any:
    hidden = args[2]
    return _like(mode, hidden), _like(mode, hidden, (hidden.shape[0], hidden.shape[1] * _GRU_KEPT))


def _gru_backward(mode: Any, args: Any, kwargs: Any) -> Any:
    grad, workspace, biased = args[:3]
    rows, side = workspace.shape[0], workspace.shape[1] // _GRU_KEPT
    gates = [_like(mode, workspace, (rows, side * _GRU_GATES)) for _ in range(2)]
    biases = [_like(mode, workspace, (side * _GRU_GATES,)) if biased else None for _ in range(2)]
    return (*gates, _like(mode, grad), *biases)


INSTEAD: dict[Any, Callable[[Any, Any, Any], Any]] = {
    aten._thnn_fused_lstm_cell.default: _lstm_forward, aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_backward,
    aten._thnn_fused_gru_cell.default: _gru_forward, aten._thnn_fused_gru_cell_backward.default: _gru_backward}
