"""Which attention kernel a card runs: the rules of `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from memfit.trace.cuda.target import CudaTarget

FLASH, EFFICIENT, CUDNN, MATH = "flash", "efficient", "cudnn", "math"
_HALVES = (torch.float16, torch.bfloat16)
_CUDNN_FIRST = (2, 8)  # with cuDNN of 9.9 or newer; 2.5.0 had it for a while, 2.5.1 took it back
_EFFICIENT_GROUPED = (2, 14)  # and one head for all without being asked: pytorch#191085; documentation of 2.13 and 2.14
_MOST_SIDE = 256
_AMPERE = (8, 0)


@dataclass(frozen=True)
class Call:
    """A call of `scaled_dot_product_attention`, as far as the choice goes by it."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    grouped: bool

    @property
    def needs_grad(self) -> bool:
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def choose(call: Call, target: CudaTarget) -> str:
    """The first kernel of the version's order that takes the call."""
    takes = {FLASH: _flash, EFFICIENT: _efficient, CUDNN: _cudnn}
    order = (CUDNN, FLASH, EFFICIENT) if _prefers_cudnn(target) else (FLASH, EFFICIENT)
    for kind in order:
        if _enabled(kind) and _dense(call) and takes[kind](call, target):
            return kind
    return MATH if torch.backends.cuda.math_sdp_enabled() or not _enabled(CUDNN) or not _cudnn(call, target) else CUDNN


def _prefers_cudnn(target: CudaTarget) -> bool:
    return target.torch_version >= _CUDNN_FIRST and target.compute_capability in ((9, 0), (10, 0))


def _enabled(kind: str) -> bool:
    switches = {FLASH: "flash_sdp_enabled", EFFICIENT: "mem_efficient_sdp_enabled", CUDNN: "cudnn_sdp_enabled"}
    return bool(getattr(torch.backends.cuda, switches[kind])())


def _dense(call: Call) -> bool:
    """Four sides, the same batch, something in it, the innermost side without gaps."""
    tensors = (call.query, call.key, call.value)
    same = len({tensor.shape[0] for tensor in tensors}) == 1
    return same and all(t.dim() == 4 and t.stride(-1) == 1 and t.numel() for t in tensors)


def _heads_fit(call: Call, target: CudaTarget, grouped_since: tuple[int, int] = (0, 0)) -> bool:
    heads, keys, values = (tensor.shape[1] for tensor in (call.query, call.key, call.value))
    if call.grouped and target.torch_version >= grouped_since:
        return keys == values and heads % keys == 0
    return heads == keys == values or (keys == values == 1 and target.torch_version >= _EFFICIENT_GROUPED)


def _flash(call: Call, target: CudaTarget) -> bool:
    side = call.query.shape[-1]
    capability = target.compute_capability
    if capability < _AMPERE or call.mask is not None or call.query.dtype not in _HALVES:
        return False
    if not _heads_fit(call, target) or {call.key.shape[-1], call.value.shape[-1]} != {side} or side > _MOST_SIDE:
        return False
    if call.causal and call.query.shape[-2] != call.key.shape[-2]:
        return False
    small = (8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)
    return not (small and call.needs_grad and (192 < side <= 224 or (side > 224 and call.dropout > 0)))


def _efficient(call: Call, target: CudaTarget) -> bool:
    dtype, capability = call.query.dtype, target.compute_capability
    if (dtype is torch.bfloat16 and capability < _AMPERE) or dtype not in (*_HALVES, torch.float32):
        return False
    if not _heads_fit(call, target, _EFFICIENT_GROUPED):
        return False
    if call.causal and call.mask is not None:
        return False
    step = _alignment(dtype, capability)
    return call.query.shape[-1] == call.key.shape[-1] and call.query.shape[-1] % step == 0 == call.value.shape[-1] % step


def _alignment(dtype: torch.dtype, capability: tuple[int, int]) -> int:
    half = dtype in _HALVES
    least = 4 if capability >= _AMPERE else 1
    cores = capability >= _AMPERE or (capability >= (7, 0) and half)
    return max(least, 8 if half else 4) if cores else least


def _cudnn(call: Call, target: CudaTarget) -> bool:
    if target.compute_capability < _AMPERE or call.query.dtype not in _HALVES or not _heads_fit(call, target):
        return False
    most = 256 if target.compute_capability == (9, 0) else 128
    sides = (call.query.shape[-1], call.value.shape[-1])
    if any(side > most or side % 8 for side in sides) or call.query.shape[-1] != call.key.shape[-1]:
        return False
    if call.mask is not None and call.mask.requires_grad:
        return False
    return call.query.shape[-2] > 1 and not (call.causal and call.query.shape[-2] != call.key.shape[-2])
