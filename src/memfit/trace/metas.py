"""Results whose shape on fakes is not what the CPU kernel gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from memfit.trace.kernels.recurrent import workspace_bytes

aten: Any = torch.ops.aten
_CPU = torch.device("cpu")


def _lstm_layer(mode: Any, args: Any, out: Any) -> Any:
    """oneDNN keeps a workspace for backward; the fake one is empty."""
    x, train = args[0], args[15]
    output, hidden, cell, _ = out
    size = workspace_bytes(*x.shape, hidden.shape[-1]) if train else 0
    workspace = FakeTensor(mode, torch.empty(size, dtype=torch.uint8, device="meta"), _CPU)
    return output, hidden, cell, workspace


CORRECTIONS: dict[Any, Callable[[Any, Any, Any], Any]] = {aten.mkldnn_rnn_layer.default: _lstm_layer}
"""`correct(mode, args, out)` gives the result as the CPU kernel would."""
