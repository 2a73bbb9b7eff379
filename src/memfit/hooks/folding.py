"""BatchNorm folded into the convolution before it, for evaluation: `conv` gives what `norm(conv)` gave.

Method: https://pytorch.org/docs/stable/generated/torch.nn.utils.fusion.fuse_conv_bn_weights.html; where it may be done is read
off a trace: the normalisation reads what the convolution made, and nothing else does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from memfit.core.strategy import Undo
from memfit.core.trace import ModuleCall, Trace
from memfit.hooks.forward import override_forward

_PAIRS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}


def foldable(model: nn.Module, trace: Trace) -> list[tuple[str, str]]:
    """Paths of convolutions and of the normalisations to fold into them, in a trace of the evaluation without a graph."""
    known = dict(model.named_modules())
    calls = Counter(call.path for call in trace.calls)
    owners = Counter(id(one) for module in model.modules() for one in module._parameters.values() if one is not None)
    given = {call.outputs[0]: call for call in trace.calls if type(known[call.path]) in _PAIRS and len(call.outputs) == 1}
    found: list[tuple[str, str]] = []
    for norm in trace.calls:
        conv = given.get(norm.inputs[0]) if len(norm.inputs) == 1 else None
        if conv is None or calls[conv.path] != 1 or calls[norm.path] != 1:
            continue
        if _fit(known[conv.path], known[norm.path], owners) and _reads_alone(trace, conv, norm):
            found.append((conv.path, norm.path))
    return found


def fold(model: nn.Module, pairs: Sequence[tuple[str, str]], undo: Undo, *, keep: bool = True) -> None:
    """Fold each normalisation into its convolution. With `keep`, `undo` puts the very same parameters back, which stay in
    memory until then; without, they are let go, and only what is called is put back."""
    for conv_path, norm_path in pairs:
        conv, norm = model.get_submodule(conv_path), model.get_submodule(norm_path)
        before = dict(conv._parameters)
        parts = norm._buffers
        with torch.no_grad():
            weight, bias = fuse_conv_bn_weights(
                before["weight"], before["bias"], parts["running_mean"], parts["running_var"],  # type: ignore[arg-type]
                norm.eps, norm._parameters["weight"], norm._parameters["bias"])  # type: ignore[arg-type]
        if keep:
            undo.push(partial(conv._parameters.update, before))
        conv._parameters.update(weight=weight, bias=bias)
        override_forward(norm, passed_on, undo)


def passed_on(module: nn.Module, previous: Callable[..., Any] | None, input: torch.Tensor) -> torch.Tensor:
    """The forward of a normalisation that was folded."""
    return input


def _fit(conv: nn.Module, norm: nn.Module, owners: Counter[int]) -> bool:
    """Whether both do what their classes do and nothing else, with statistics and parameters of their own."""
    if type(norm) is not _PAIRS[type(conv)] or norm._buffers.get("running_mean") is None:
        return False
    plain = all("forward" not in one.__dict__ and not one._forward_hooks and not one._forward_pre_hooks for one in (conv, norm))
    return plain and all(owners[id(one)] == 1 for one in conv._parameters.values() if one is not None)


def _reads_alone(trace: Trace, conv: ModuleCall, norm: ModuleCall) -> bool:
    """Whether nobody but the normalisation's operators touches what the convolution gave, and it gave it whole."""
    index = conv.outputs[0]
    touching = [op for op in trace.ops if index in op.reads or index in op.writes]
    return all(op.module in (conv.path, norm.path) for op in touching) and not any(
        index in call.inputs for call in trace.calls if call.path not in (norm.path, conv.path))
