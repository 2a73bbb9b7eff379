"""Adam and AdamW become Adafactor: no first moment, and of the second only the means of its rows and columns.

Source: N. Shazeer, M. Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost" (arXiv 1804.04235).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Adafactor, Adam, AdamW

_LEAST_SCALE = 1.0  # Adafactor steps by its rate times the parameter's size, at least this: so the rate means what Adam's does


class AdamFactored(Adam):
    """Adam in name, groups and hooks; each step is Adafactor's, with the groups' rates, decay and `maximize`."""

    def _init_group(
        self, group: dict[str, Any], params_with_grad: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any,
        state_steps: Any,
    ) -> Any:
        """Step all, and leave nothing to the step that called."""
        held = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in held:
            if "exp_avg" in self.state[parameter]:  # a plain state_dict was loaded
                _factor(self.state[parameter], group)
        if held:
            inner = Adafactor(held, float(group["lr"]), eps=(None, _LEAST_SCALE), weight_decay=float(group["weight_decay"]),
                              foreach=False, maximize=group["maximize"])
            inner.state = self.state
            step: Any = Adafactor.step
            getattr(step, "__wrapped__", step)(inner)  # below its hooks: those see the one step of this optimizer
        return False

    def code_all(self) -> None:
        """Factor the second moments that are there; first moments go."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if "exp_avg" in self.state.get(parameter, {}):
                    _factor(self.state[parameter], group)

    def decode_all(self) -> None:
        """Second moments as their factors tell, and first ones of zero."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if {"row_var", "variance"} & set(self.state.get(parameter, {})):
                    _multiply(self.state[parameter], group, parameter)


class AdamWFactored(AdamFactored, AdamW):
    """AdamW in name; see `AdamFactored`."""


def _factor(state: dict[str, Any], group: dict[str, Any]) -> None:
    state.pop("exp_avg")
    square = state.pop("exp_avg_sq")
    known = 1 - float(group["betas"][1]) ** float(state["step"].item())  # Adam's began at zero
    if square.dim() > 1:
        state["row_var"] = square.mean(-1, keepdim=True).div_(known)
        state["col_var"] = square.mean(-2, keepdim=True).div_(known)
    else:
        state["variance"] = square.div(known)


def _multiply(state: dict[str, Any], group: dict[str, Any], parameter: torch.Tensor) -> None:
    known = 1 - float(group["betas"][1]) ** float(state["step"].item())
    square = state.pop("variance", None)
    if square is None:
        row, column = state.pop("row_var"), state.pop("col_var")
        square = (row @ column).div_(row.mean(-2, keepdim=True).clamp_(min=torch.finfo(row.dtype).tiny))
    state["exp_avg"] = torch.zeros_like(parameter)
    state["exp_avg_sq"] = torch.empty_like(parameter).copy_(square.mul_(known))
