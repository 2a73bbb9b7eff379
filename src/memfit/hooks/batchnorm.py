"""Normalisation layers that are run again without moving their running statistics.

BatchNorm in training normalises by the batch, so the statistics it keeps do not enter its result. While a forward is
recomputed they are replaced by copies: the same operators run, save as many tensors and give the same bits, and what
they update is thrown away. Scaling the momentum instead would be wrong for the batch counter and for momentum=None.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def keeps_statistics(module: nn.Module) -> bool:
    """Whether the module would update running statistics now."""
    return (module.training and isinstance(module._buffers.get("running_mean"), torch.Tensor)
            and getattr(module, "track_running_stats", True))


@contextmanager
def frozen_statistics(root: nn.Module) -> Iterator[None]:
    """Inside, training-mode normalisation below `root` leaves running statistics and batch counters alone."""
    kept: list[tuple[nn.Module, str, torch.Tensor]] = []
    for module in root.modules():
        if keeps_statistics(module):
            kept.extend((module, name, buffer) for name in _STATISTICS
                        if (buffer := module._buffers.get(name)) is not None)
    try:
        with torch.no_grad():
            for module, name, buffer in kept:
                module._buffers[name] = buffer.clone()
        yield
    finally:
        for module, name, buffer in kept:
            module._buffers[name] = buffer
