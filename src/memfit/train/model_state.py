"""A model's state_dict in a safetensors file, and back into place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from memfit.core.errors import UsageError
from memfit.train.tensor_files import TensorFile, can_write, write_tensors


def write_model(path: Path, model: nn.Module) -> dict[str, Any]:
    """Write the tensors of the state_dict (tied ones once); gives the entries that the file cannot hold, by name."""
    tensors, others = _apart(model)
    write_tensors(path, tensors)
    return others


def read_model(path: Path, rest: Path, model: nn.Module) -> None:
    """Fill the model with what was written, one tensor at a time. Raises UsageError if names or shapes differ."""
    file = TensorFile(path)
    tensors, others = _apart(model)
    missing, unknown = sorted(set(tensors) - set(file)), sorted(set(file) - set(tensors))
    if missing or unknown:
        which = f"lacks {missing[0]}" if missing else f"has {unknown[0]}, which the model has not"
        raise UsageError(f"the saved model in {path} {which}", "resume with the TARGET and settings of that run")
    for name, tensor in tensors.items():
        file.read_into(name, tensor)
    if others:
        saved = torch.load(rest, weights_only=True, map_location="cpu")["model"]
        model.load_state_dict(saved, strict=False)


def _apart(model: nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The state_dict's plain tensors, each storage view once, and its other entries."""
    tensors: dict[str, torch.Tensor] = {}
    others: dict[str, Any] = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor) or not can_write(value.detach()):
            others[name] = value.detach() if isinstance(value, torch.Tensor) else value
            continue
        key = (value.data_ptr(), tuple(value.shape), tuple(value.stride()))
        if value.numel() == 0 or key not in seen:
            seen.add(key)
            tensors[name] = value.detach()
    return tensors, others
