"""Jobs over models that nobody picked: by name from torchvision's and transformers' own lists, randomly initialised.

Names are `torchvision/resnet18`, `SequenceClassification/bert`, `CausalLM/llama`, `ImageClassification/vit`. Configurations
are the defaults, with at most two layers of each kind so that a step takes seconds.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
from typing import Any

import torch
from torch.nn import functional as F

from memfit.jobs import Job

KINDS = ("SequenceClassification", "CausalLM", "ImageClassification")
_LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers",
                 "num_encoder_layers", "num_decoder_layers", "num_encoder_blocks")
_LAYERS, _BATCH, _LENGTH, _WORDS = 2, 4, 128, 1000


def names() -> list[str]:
    """Every classifier of torchvision and every transformers model of the three kinds, sorted."""
    import torchvision
    from transformers.models.auto import modeling_auto

    found = [f"torchvision/{name}" for name in torchvision.models.list_models(module=torchvision.models)]
    tables = ("SEQUENCE_CLASSIFICATION", "CAUSAL_LM", "IMAGE_CLASSIFICATION")
    for kind, table in zip(KINDS, tables, strict=True):
        found += [f"{kind}/{name}" for name in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES")]
    return sorted(found)


def drawn(seed: int = 0) -> list[str]:
    """All names in an order that the seed decides."""
    order = names()
    random.Random(seed).shuffle(order)
    return order


def job(name: str) -> Job:
    """The job of that name: cross entropy on random input, and SGD with momentum, whose peak is in backward."""
    kind, model = name.split("/")
    torch.manual_seed(0)
    return _torchvision(model) if kind == "torchvision" else _transformers(kind, model)


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.01, momentum=0.9)


def _torchvision(name: str) -> Job:
    import torchvision

    model = torchvision.models.get_model(name, weights=None)
    side = 299 if name.startswith("inception") else 224
    batch = torch.randn(_BATCH, 3, side, side), torch.zeros(_BATCH, dtype=torch.long)

    def loss(net: torch.nn.Module, given: Any) -> torch.Tensor:
        out = net(given[0])
        parts = [part for part in out if part is not None] if isinstance(out, tuple) else [out]
        return sum((F.cross_entropy(part, given[1]) for part in parts), torch.zeros(()))

    return Job(model.train(), loss, batch, _momentum)


def _transformers(kind: str, name: str) -> Job:
    import transformers

    config = transformers.AutoConfig.for_model(name)
    shrink(config)
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config)
    batch = _images(config) if kind == "ImageClassification" else _words(kind, config)
    return Job(model.train(), lambda net, given: net(**given).loss, batch, _momentum)


def shrink(config: Any) -> None:
    """At most two layers of each kind, here and in configurations inside; a padding word where there is none."""
    for inner in vars(config).values():
        if hasattr(inner, "to_dict") and inner is not config:
            shrink(inner)
    for name in _LAYER_COUNTS:
        count = getattr(config, name, None)
        if isinstance(count, int) and count > _LAYERS:
            _set(config, name, _LAYERS)
    kinds = getattr(config, "layer_types", None)
    if kinds:
        _set(config, "layer_types", list(kinds)[:_LAYERS])
    if getattr(config, "pad_token_id", 0) is None:
        _set(config, "pad_token_id", 0)
    _set(config, "use_cache", False)


def _set(config: Any, name: str, value: Any) -> None:
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # computed from others, or checked against them
        setattr(config, name, value)


def _words(kind: str, config: Any) -> dict[str, torch.Tensor]:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    ids = torch.randint(5, min(getattr(text, "vocab_size", None) or _WORDS, _WORDS), (_BATCH, _LENGTH))
    labels = torch.zeros(_BATCH, dtype=torch.long) if kind == "SequenceClassification" else ids.clone()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def _images(config: Any) -> dict[str, torch.Tensor]:
    vision = getattr(config, "vision_config", config)
    side = getattr(vision, "image_size", None) or 224
    side = side[0] if isinstance(side, (list, tuple)) else side
    channels = getattr(vision, "num_channels", None) or 3
    return {"pixel_values": torch.randn(_BATCH, channels, side, side), "labels": torch.zeros(_BATCH, dtype=torch.long)}


def least_bytes(name: str) -> int:
    """Bytes of weights, gradients and momentum, from the model without memory."""
    with torch.device("meta"):
        return 3 * sum(p.numel() * p.element_size() for p in job(name).model.parameters())


if __name__ == "__main__":
    print(json.dumps({"least_bytes": least_bytes(sys.argv[1])}))
