"""What a forward changes besides its result, kept so that the same forward can be run a second time."""

from __future__ import annotations

import torch
from torch import nn

from memfit.jobs.randomness import raw_state, set_raw_state


class ForwardState:
    """Copies of every buffer (running statistics, counters, tables) and the random generators' states as they are now.

    After `put_back()` a forward sees and draws what it would have at the time of the copy. Other things that a model may
    count in its forward (attributes that are no buffers) are not kept.
    """

    def __init__(self, model: nn.Module) -> None:
        self._random = raw_state()
        self._places = [(module._buffers, name, buffer) for module in model.modules()
                        for name, buffer in module._buffers.items() if buffer is not None]
        with torch.no_grad():
            self._copies = {id(buffer): (buffer, buffer.clone()) for _, _, buffer in self._places}

    def put_back(self) -> None:
        """Buffers and generators are as they were; a buffer that was replaced by another tensor is itself again."""
        with torch.no_grad():
            for buffer, copy in self._copies.values():
                buffer.copy_(copy)
        for buffers, name, buffer in self._places:
            buffers[name] = buffer
        set_raw_state(self._random)
