"""An optimizer's state as named tensors and a skeleton without them, and back, in the dtypes that it had.

`Optimizer.load_state_dict` casts floating-point states to the parameter's dtype, so that states kept in 8 bit or
bfloat16 would come back four times as large; here every tensor is put back as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from memfit.core.errors import UsageError
from memfit.train.tensor_files import TensorFile, can_write

_TENSOR = "memfit.tensor"


@dataclass(frozen=True)
class StateOfOptimizer:
    """`tensors` are the live ones, by `parameter.key`; `skeleton` holds all else, in types that `torch.save` takes."""

    tensors: dict[str, torch.Tensor]
    skeleton: dict[str, Any]


def state_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> StateOfOptimizer:
    """Take the state apart; tensors that no file of ours holds (wrapper subclasses) stay in the skeleton."""
    tensors: dict[str, torch.Tensor] = {}
    states = {name: _take_apart(optimizer.state[parameter], name, tensors)
              for name, parameter in _held(optimizer, model) if parameter in optimizer.state}
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return StateOfOptimizer(tensors, {"state": states, "groups": groups, "sizes": sizes})


def named_states(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, torch.Tensor]:
    """Only the tensors, by `parameter.key`."""
    return state_of(optimizer, model).tensors


def restore(optimizer: torch.optim.Optimizer, model: nn.Module, skeleton: Mapping[str, Any], file: TensorFile) -> None:
    """Give the optimizer the saved state, reading one tensor at a time.

    Raises UsageError if its parameter groups are not those that were saved.
    """
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != list(skeleton["sizes"]):
        raise UsageError(f"the checkpoint's optimizer has parameter groups of {list(skeleton['sizes'])} parameters, "
                         f"the job's of {sizes}", "resume with the optimizer of the run that saved it")
    for group, saved in zip(optimizer.param_groups, skeleton["groups"]):
        group.update(saved)
    optimizer.state.clear()
    for name, parameter in _held(optimizer, model):
        for key, value in skeleton["state"].get(name, {}).items():  # one by one: a state may live elsewhere than in memory
            optimizer.state[parameter][key] = _put_together(value, file, parameter)


def _held(optimizer: torch.optim.Optimizer, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """`(name, parameter)` in the optimizer's order; the model's name where it has one."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    position = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield names.get(id(parameter), f"parameter{position}"), parameter
            position += 1


def _take_apart(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor) and can_write(value):
        tensors[name] = value
        return {_TENSOR: name, "device": value.device.type}
    if isinstance(value, Mapping):
        return {key: _take_apart(inner, f"{name}.{key}", tensors) for key, inner in value.items()}
    if isinstance(value, (list, tuple)) and any(isinstance(inner, torch.Tensor) for inner in value):
        return type(value)(_take_apart(inner, f"{name}.{place}", tensors) for place, inner in enumerate(value))
    return value


def _put_together(value: Any, file: TensorFile, parameter: nn.Parameter) -> Any:
    if isinstance(value, Mapping):
        if _TENSOR in value:
            tensor = file.read(value[_TENSOR])
            return tensor if value["device"] == "cpu" else tensor.to(parameter.device)
        return {key: _put_together(inner, file, parameter) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_put_together(inner, file, parameter) for inner in value)
    return value
