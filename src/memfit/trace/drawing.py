"""Whether a step draws random numbers (dropout, sampling), as its operators say."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

aten: Any = torch.ops.aten
_ATTENTION = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")  # tagged as random at any probability


def draws_random(ops: Iterable[tuple[Any, ...]]) -> bool:
    """Whether one of the recorded operators (rows of name, phase, ...) draws random numbers in forward."""
    return any(_is_random(name) for name in {name for name, phase, *_ in ops if phase == "forward"})


@cache
def _is_random(name: str) -> bool:
    """By torch's own tag. Attention with dropout is several operators on a CPU, so its kernels do not count."""
    packet = getattr(aten, name, None)
    if packet is None or name.startswith(_ATTENTION):
        return False
    return any(torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags for overload in packet.overloads())
