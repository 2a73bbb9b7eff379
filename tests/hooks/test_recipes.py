"""Recipes: the same bits, and nothing that outlives the graph."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

from memfit.hooks.recipes import Kept, Recipe
from memfit.hooks.tensor_recompute import parse_tensors, recomputing, write_tensors

ALL = ["native_batch_norm:0-9", "native_layer_norm:0-9", "gelu:0-9", "relu:0-9", "addmm:0-9", "convolution:0-9",
       "add:0-9", "mul:0-9"]


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Conv(nn.Module):
    """In-place activation and residual sum, BatchNorm, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.relu(self.norm(self.conv(x))))
        y += x
        return self.relu(y)


def trained(model: nn.Module, x: torch.Tensor, tensors: list[str]) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    with recomputing(parse_tensors(tensors)):
        loss = model(x).pow(2).mean()
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **grads, **dict(model.named_buffers())}


@pytest.mark.parametrize(("block", "shape"), [(Wide, (16, 8)), (Conv, (2, 4, 8, 8))])
@pytest.mark.parametrize("tensors", [ALL, ALL[:4], ALL[4:]])
def test_same_bits_and_buffers(block: type[nn.Module], shape: tuple[int, ...], tensors: list[str]) -> None:
    results = []
    for chosen in ([], tensors):
        torch.manual_seed(1)
        model = nn.Sequential(*(block() for _ in range(3)))
        results.append(trained(model, torch.randn(shape), chosen))
    plain, recomputed = results
    assert plain.keys() == recomputed.keys()
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)


def test_nothing_outlives_the_graph() -> None:
    model, x = nn.Sequential(*(Wide() for _ in range(4))), torch.randn(16, 8)
    gc.collect()
    gc.disable()
    try:
        with recomputing(parse_tensors(ALL)):
            loss = model(x).mean()
        loss.backward()
        del loss
        assert not [one for one in gc.get_objects() if type(one) in (Recipe, Kept)]
    finally:
        gc.enable()


def test_an_input_that_was_written_to_is_refused() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    with recomputing(parse_tensors(["gelu:0"])):
        y = x * 1
        loss = (nn.functional.gelu(y.detach()) * x).sum()
        y.data.add_(0)
        y.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_names_are_read_and_written() -> None:
    chosen = {"gelu": frozenset({0, 1, 2, 5}), "relu": frozenset({7})}
    assert write_tensors(chosen) == ["gelu:0-2,5", "relu:7"]
    assert parse_tensors(write_tensors(chosen)) == chosen
    assert parse_tensors(["relu_:7", "relu:2"]) == {"relu": frozenset({2, 7})}  # numbered together
