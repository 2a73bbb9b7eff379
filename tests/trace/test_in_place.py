"""Which sums are in place: those that a function of torch adds into the product that it just made."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.trace.in_place import ADD, IN_PLACE, PRODUCTS, InPlaceRules


class Asking(TorchDispatchMode):
    """Asks the rules of each sum; `forged`: as if a product had been made by a frame at the sum's own address."""

    def __init__(self, forged: bool) -> None:
        super().__init__()
        self.rules, self.forged, self.answers = InPlaceRules(), forged, list[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        caller = _caller()
        if func is ADD:
            if self.forged:
                self.rules.product(caller, args[0])
            self.answers.append(self.rules.in_place(func, args, caller, 0))
        out = func(*args, **(kwargs or {}))
        if func in PRODUCTS:
            self.rules.product(caller, out)
        return out


def _caller() -> Any:
    """The frame that led to the call: an operator's own, or one of this file; torch wraps a mode's dispatch in others."""
    frame: Any = sys._getframe(2)
    while frame.f_code is not torch._ops.OpOverload.__call__.__code__ and frame.f_code.co_filename != __file__:
        frame = frame.f_back
    return frame


def test_a_layer_adds_its_bias_into_the_product() -> None:
    x, weight, bias = torch.randn(2, 3, 4)[:, :, ::2], torch.randn(5, 2), torch.randn(5)
    with Asking(forged=False) as asking:
        F.linear(x, weight, bias)
    assert asking.answers in ([IN_PLACE[ADD]], [])  # where one kernel does both there is no sum


def test_a_sum_called_by_itself_completes_no_product() -> None:
    with Asking(forged=True) as asking:
        ADD(torch.randn(3), torch.randn(3))
    assert asking.answers == [None]
