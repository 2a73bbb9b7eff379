"""What a plan or a checkpoint belongs to: a hash of the model's parameter names, shapes and dtypes."""

from __future__ import annotations

import hashlib

from torch import nn


def model_hash(model: nn.Module) -> str:
    """Sixteen hex digits; equal for a real model and its fake copy."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
    return digest.hexdigest()[:16]
