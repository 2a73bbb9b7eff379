"""The workspace of one convolution call: asked of the installed cuDNN, else by class of layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memfit.core.device import Device
from memfit.hardware.cudnn.asking import oracle
from memfit.hardware.cudnn.backend import DOWN_CONVERT, NONDETERMINISTIC, TENSOR_CORE, Configuration
from memfit.hardware.cudnn.bounds import multiples
from memfit.hardware.cudnn.finding import version_text
from memfit.hardware.cudnn.question import ConvolutionCall

# The engine that runs may be one of the next: a plan can fail on the real card, and another version orders them otherwise.
_TRIED = 2
_USUAL = ConvolutionCall("fwd", "float32", (8, 64, 56, 56), (64, 64, 3, 3), (8, 64, 56, 56), (1, 1), (1, 1), (1, 1))


@dataclass(frozen=True)
class Workspace:
    """Bytes of one call's workspace. It is elastic: where it cannot be had, PyTorch takes the next engine, down to one of
    `low_bytes`. `typical_bytes` is what is tried first; `source` says who answered."""

    low_bytes: int
    typical_bytes: int
    high_bytes: int
    source: str


def convolution_workspace(
    call: ConvolutionCall, device: Device, cudnn: int | None = None, *, benchmark: bool = False
) -> Workspace:
    """The workspace of a call on a card. `cudnn` is the version that will run (91002; None: the one that is installed
    here, else a recent one); another one's answer is taken with a wider range.

    `benchmark`: as `torch.backends.cudnn.benchmark`, whose first step takes one buffer of the largest workspace.
    """
    asked = oracle(device)
    if asked is not None:
        found = asked.configurations(call)
        sizes = [one.workspace_bytes for one in tried(found or (), call)]
        if sizes:
            same = cudnn is None or cudnn // 100 == asked.version // 100
            return _asked(call, sizes, same, asked.version, benchmark)
    return _by_class(call, device, cudnn, benchmark)


def answering(device: Device, cudnn: int | None = None) -> str:
    """Who answers for the convolutions of a card: `asked cuDNN 9.24.0`, `table of cuDNN 9.10`, or bounds."""
    return convolution_workspace(_USUAL, device, cudnn).source


def tried(configurations: Iterable[Configuration], call: ConvolutionCall) -> list[Configuration]:
    """Those that PyTorch tries, in order (aten/src/ATen/native/cudnn/Conv_v8.cpp, filterEngineConfigs)."""
    excluded = {DOWN_CONVERT}
    if call.deterministic:
        excluded.add(NONDETERMINISTIC)
    if call.dtype == "float32" and not call.allow_tf32:
        excluded.add(TENSOR_CORE)
    return [one for one in configurations if not excluded & set(one.notes)]


def _asked(call: ConvolutionCall, sizes: list[int], same: bool, version: int, benchmark: bool) -> Workspace:
    source = f"asked cuDNN {version_text(version)}{'' if same else ', not the version that runs'}"
    if benchmark:
        return Workspace(min(sizes), max(sizes), max(sizes), source)
    return Workspace(min(sizes), sizes[0], max(sizes[:_TRIED]), source)


def _by_class(call: ConvolutionCall, device: Device, cudnn: int | None, benchmark: bool) -> Workspace:
    found, source = multiples(call, device.compute_capability or (8, 0), cudnn)
    low, typical, high = (round(factor * call.tensors_bytes) for factor in found)
    if benchmark:  # the largest of all engines: two to four times, seldom more
        typical, high = max(high, 2 * typical), max(2 * high, 4 * typical)
    return Workspace(low, typical, high, source)
