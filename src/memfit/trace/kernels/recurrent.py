"""LSTM layers through oneDNN: what forward keeps for backward, and the packed weights and gates of a call.

Sizes follow oneDNN's layout: leading dimensions are rounded up to 16 elements, and by 16 more where a multiple of 256
would make cache lines collide; each piece of the workspace begins on a page. Equal to the byte on twelve layers.
"""

from __future__ import annotations

from typing import Any

import torch

from memfit.trace.kernels.sizes import copy_bytes, nbytes, padded

aten: Any = torch.ops.aten
_PAGE = 4096
_MODE_LSTM = 2


def _leading(side: int) -> int:
    rounded = padded(side, 16)
    return rounded + 16 if rounded % 256 == 0 else rounded


def workspace_bytes(steps: int, batch: int, inputs: int, hidden: int) -> int:
    """What a training forward leaves for backward: gates, and the states of all steps with their gradients."""
    gates = steps * batch * _leading(4 * hidden) * 4
    states = 2 * (steps + 1) * batch * _leading(max(inputs, hidden)) * 4
    cells = 2 * (steps + 1) * batch * hidden * 4
    hidden_out = steps * batch * _leading(hidden) * 4
    return padded(gates, _PAGE) + 3 * padded(states, _PAGE) + 2 * padded(cells, _PAGE) + padded(hidden_out, _PAGE)


def _call_bytes(x: Any, w_ih: Any) -> int:
    """Bias, both weights packed, gates of all steps."""
    steps, batch, inputs = x.shape
    hidden = w_ih.shape[0] // 4
    packed = (inputs + hidden) * _leading(4 * hidden) * 4
    gates = padded(steps * batch * _leading(4 * hidden) * 4, _PAGE) + 8 * batch * hidden + 3 * _PAGE
    return 16 * hidden + packed + gates


def forward(args: Any, kwargs: Any, out: Any) -> int:
    return _call_bytes(args[0], args[1]) if args[9] == _MODE_LSTM else 0


def backward(args: Any, kwargs: Any, out: Any) -> int:
    x, w_ih, w_hh = args[:3]
    transposed = sum(w.shape[0] * _leading(w.shape[1]) * 4 for w in (w_ih, w_hh) if _leading(w.shape[1]) != w.shape[1])
    grads = sum(copy_bytes(grad) for grad in args[10:13] if isinstance(grad, torch.Tensor))
    return _call_bytes(x, w_ih) + transposed + nbytes(w_ih[:, 0]) + grads


SCRATCH = {
    aten.mkldnn_rnn_layer.default: forward,
    aten.mkldnn_rnn_layer_backward.default: backward,
}
