"""The global norm of gradients that are not alive at the same time, as `torch.nn.utils.clip_grad_norm_` takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_torch: Any = torch  # its stubs do not name foreach operators


def measured(gradient: torch.Tensor | None) -> torch.Tensor:
    """The L2 norm of one gradient, by the operator that `clip_grad_norm_` calls for all of them (a scalar tensor)."""
    assert gradient is not None
    with torch.no_grad():
        return _torch._foreach_norm([gradient.detach()], 2.0)[0]


def total_norm(norms: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of the norms, in the order of the optimizer's parameters; 0 for none."""
    if not norms:
        return torch.tensor(0.0)
    with torch.no_grad():
        return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]), 2.0)
