"""Inference mode as a scope without gradients: in it operators would reach the trace past autocast and composites."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.autograd.grad_mode import inference_mode


@contextmanager
def inference_as_no_grad() -> Iterator[None]:
    """Inside, `torch.inference_mode` keeps gradients from being recorded, and no more. It takes the same memory."""
    entered: list[Any] = []

    def enter(self: Any) -> None:
        entered.append(torch.set_grad_enabled(torch.is_grad_enabled() and not self.mode))
        entered[-1].__enter__()

    def leave(self: Any, *failure: Any) -> None:
        entered.pop().__exit__(*failure)

    with mock.patch.object(inference_mode, "__enter__", enter), mock.patch.object(inference_mode, "__exit__", leave):
        yield
