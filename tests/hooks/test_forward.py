"""Overriding a module's forward: nested, undone in any order, pickled and copied."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch
from torch import nn

from memfit.core.strategy import Undo
from memfit.hooks import call_forward, override_forward


def plus(module: nn.Module, previous: Any, x: torch.Tensor, *, amount: float) -> torch.Tensor:
    return call_forward(module, previous, x) + amount


def times(module: nn.Module, previous: Any, x: torch.Tensor, *, factor: float) -> torch.Tensor:
    return call_forward(module, previous, x) * factor


def overridden() -> tuple[nn.Linear, torch.Tensor, list[Undo]]:
    module, undos = nn.Linear(2, 2), [Undo(), Undo(), Undo()]
    override_forward(module, plus, undos[0], amount=1.0)
    override_forward(module, times, undos[1], factor=2.0)
    override_forward(module, plus, undos[2], amount=3.0)
    return module, torch.randn(3, 2), undos


def test_overrides_nest_and_come_off_in_any_order() -> None:
    module, x, undos = overridden()
    plain = nn.Linear.forward(module, x)
    assert torch.equal(module(x), (plain + 1) * 2 + 3)
    undos[1]()
    assert torch.equal(module(x), plain + 1 + 3)
    undos[2]()
    assert torch.equal(module(x), plain + 1)
    undos[0]()
    assert torch.equal(module(x), plain)
    assert "forward" not in vars(module)


def test_the_instance_forward_that_was_there_comes_back() -> None:
    module = nn.Linear(2, 2)
    own = module.forward = lambda x: x
    undo = Undo()
    override_forward(module, plus, undo, amount=1.0)
    assert torch.equal(module(torch.zeros(2)), torch.ones(2))
    undo()
    assert vars(module)["forward"] is own


def test_copies_are_bound_to_themselves() -> None:
    module, x, _ = overridden()
    for other in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        with torch.no_grad():
            other.weight.zero_(), other.bias.zero_()
        assert torch.equal(other(x), torch.full((3, 2), 5.0))
        assert not torch.equal(module(x), other(x))
