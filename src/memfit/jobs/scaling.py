"""Loss scaling for float16: gradients that would be too small for it are computed larger, and divided again.

`torch.amp.GradScaler` does the arithmetic; here it is called once a window, in the only order that is right: scale each
part's loss, unscale the sum, (clip,) step, update. Micikevicius et al., "Mixed Precision Training", arXiv:1710.03740.
"""

from __future__ import annotations

from typing import Any

import torch


class LossScaling:
    """A `GradScaler` whose window can be taken back. `device` is the type of the parameters' device."""

    def __init__(self, device: str) -> None:
        self._scaler = torch.amp.GradScaler(device)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return self._scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the window's gradients, and note whether all of them are finite."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Step unless a gradient was not finite, and adapt the scale; whether the optimizer stepped."""
        before = self._scaler.get_scale()
        self._scaler.step(optimizer)
        self._scaler.update()
        return self._scaler.get_scale() >= before

    def state(self) -> dict[str, Any]:
        """Scale and counters, as plain numbers."""
        return self._scaler.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave, whatever a window that failed half-way had noted."""
        if getattr(self._scaler, "_scale", None) is not None:
            self._scaler.update(float(state["scale"]))  # also forgets what was noted of the optimizer's gradients
        self._scaler.load_state_dict(state)
