"""The table of workspaces that memfit ships for machines without cuDNN: asked of one library, for every compute capability.

    python benchmarks/cudnn_table.py [LIBCUDNN] [--check]

The convolutions are those of ten torchvision models at two batch sizes (shapes only), a U-Net's and a video model's. For
each class of layer: the smallest workspace of any engine, the median and the 95th percentile of the engine that PyTorch
would try first, as multiples of input, result and weight. A further library adds its version to the table. `--check`
prints how far the table's typical value is from the answer, layer by layer, without writing it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torchvision
from torch import nn

from memfit.core.device import Device
from memfit.hardware import find_device
from memfit.hardware.cudnn import bounds
from memfit.hardware.cudnn.asking import Asking
from memfit.hardware.cudnn.finding import library_path, version_text
from memfit.hardware.cudnn.properties import properties_json
from memfit.hardware.cudnn.question import DIRECTIONS, ConvolutionCall
from memfit.hardware.cudnn.workspace import tried

CARDS = ("gtx1080", "v100-16gb", "t4", "a100-40gb", "rtx3060", "jetson-agx-orin", "rtx4060", "h100-sxm", "b200", "rtx5090")
MODELS = ("resnet50", "vgg16", "inception_v3", "mobilenet_v2", "efficientnet_b0", "densenet121", "convnext_tiny",
          "regnet_y_400mf", "alexnet", "vit_b_16")
BATCHES = (8, 64)
DTYPES = ("float32", "float16", "bfloat16")
TABLE = Path(bounds.__file__).with_name("workspaces.json")


def shapes() -> Iterator[tuple[nn.Module, tuple[int, ...], tuple[int, ...]]]:
    """Every convolution with the sides of its input and result."""
    for name in MODELS:
        model = getattr(torchvision.models, name)().to("meta")
        side = 299 if name == "inception_v3" else 224
        for batch in BATCHES:
            yield from _hooked(model, torch.empty(batch, 3, side, side, device="meta"))
    yield from _hooked(torchvision.models.video.r3d_18().to("meta"), torch.empty(2, 3, 16, 112, 112, device="meta"))
    for width, side in ((64, 256), (128, 128), (256, 64), (512, 32)):
        block = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, padding=2, dilation=2))
        yield from _hooked(block.to("meta"), torch.empty(4, width, side, side, device="meta"))


def _hooked(model: nn.Module, x: torch.Tensor) -> Iterator[tuple[nn.Module, tuple[int, ...], tuple[int, ...]]]:
    found: list[tuple[nn.Module, tuple[int, ...], tuple[int, ...]]] = []
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Conv3d)):
            module.register_forward_hook(lambda m, args, y: found.append((m, tuple(args[0].shape), tuple(y.shape))))
    with torch.no_grad():
        model.eval()(x)
    yield from found


def calls() -> list[ConvolutionCall]:
    """Every distinct call of every direction, type and layout."""
    plain = {}
    for module, x, y in shapes():
        sides = tuple(module.weight.shape)
        key = ConvolutionCall("fwd", "float32", x, sides, y, tuple(module.stride), tuple(module.padding),
                              tuple(module.dilation))
        plain[key] = key
    return [replace(call, direction=direction, dtype=dtype, channels_last=last)
            for call in plain for direction in DIRECTIONS for dtype in DTYPES for last in (False, True)]


def answers(asking: Asking, device: Device, wanted: list[ConvolutionCall]) -> dict[str, list[tuple[float, float]]]:
    """By class: smallest and first workspace of each call, as multiples. float32 is counted with and without TF32."""
    card, found = properties_json(device), defaultdict(list)
    for call in wanted:
        configurations = asking.configurations(call, card)
        for variant in (call, replace(call, allow_tf32=False)) if call.dtype == "float32" else (call,):
            sizes = [one.workspace_bytes for one in tried(configurations or (), variant)]
            if sizes:
                scale = max(1, call.tensors_bytes)
                found[bounds.layer_class(variant)].append((min(sizes) / scale, sizes[0] / scale))
    return found


def summary(pairs: list[tuple[float, float]]) -> list[float]:
    first = sorted(one for _, one in pairs)
    high = first[min(len(first) - 1, math.ceil(0.95 * len(first)) - 1)]
    return [round(min(low for low, _ in pairs), 4), round(statistics.median(first), 4), round(high, 4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", nargs="?", default=str(library_path() or ""))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    asking = Asking(Path(options.library))
    if not asking.ready():
        sys.exit(f"no cuDNN answers: {options.library or 'none is installed'}")
    wanted, rows = calls(), {}
    for name in CARDS:
        device = find_device(name)
        capability = device.compute_capability or (0, 0)
        found = answers(asking, device, wanted)
        if found:
            rows[f"{capability[0]}.{capability[1]}"] = {key: summary(pairs) for key, pairs in sorted(found.items())}
        print(f"{name}: {len(wanted)} calls, {sum(map(len, found.values()))} answers, {len(found)} classes")
        if options.check:
            for key, pairs in sorted(found.items()):
                typical = summary(pairs)[1]
                off = statistics.median(abs(first - typical) for _, first in pairs)
                print(f"  {key}: {len(pairs)} layers, typical {typical}, median distance {off:.3f}")
    if not options.check:
        _write(asking.version or 0, rows)
    asking.close()


def _write(version: int, rows: dict[str, dict[str, list[float]]]) -> None:
    kept = json.loads(TABLE.read_text()) if TABLE.exists() else {"multiples": {}}
    kept["made_by"] = "benchmarks/cudnn_table.py"
    kept["multiples"][str(version)] = rows
    TABLE.write_text(json.dumps(kept, separators=(",", ":"), sort_keys=True) + "\n")
    print(f"cuDNN {version_text(version)} written to {TABLE} ({TABLE.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
