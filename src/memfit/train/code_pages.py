"""While a limited job runs, code that its operators generate is made read-only as it comes (`launch.generated_code`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from memfit.launch import GeneratedCode

_SOONEST_S, _LATEST_S = 0.005, 10.0


class _Paced:
    """Looks often while code appears (a job's first step), and ever more rarely when none does."""

    def __init__(self) -> None:
        self._code = GeneratedCode()
        self._wait_s, self._next = _SOONEST_S, 0.0

    def __call__(self, *_: Any) -> None:
        now = time.perf_counter()
        if now < self._next:
            return
        found = self._code.make_read_only()
        self._wait_s = _SOONEST_S if found else min(2 * self._wait_s, _LATEST_S)
        self._next = time.perf_counter() + self._wait_s


@contextmanager
def code_read_only(model: nn.Module) -> Iterator[None]:
    """Look after each module's forward and after each parameter's gradient: no operator is running then, as a CPU's
    backward runs in the thread that called it."""
    paced = _Paced()
    handles = [register_module_forward_hook(paced)]
    handles += [p.register_post_accumulate_grad_hook(paced) for p in model.parameters() if p.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
