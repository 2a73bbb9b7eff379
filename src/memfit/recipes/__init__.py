"""Ready jobs on real data, and the loading of a TARGET: a recipe's name or `path/to/file.py:function`.

A recipe's module imports its libraries (transformers, torchvision, scikit-learn) when `prepare` imports it, never
inside the function: a memory limit set between the two does not have to carry them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from memfit.core.errors import UsageError
from memfit.jobs.job import Job
from memfit.jobs.targets import JobFunction, call_target, is_path, load_function, nearest

RECIPES: Mapping[str, str] = MappingProxyType({
    "vit-mini": "vision:vit_mini",
    "vit-s16": "vision:vit_s16",
    "vit-base": "vision:vit_base",
    "resnet18": "vision:resnet18",
    "resnet50": "vision:resnet50",
    "mobilenet-v3": "vision:mobilenet_v3",
    "efficientnet-b0": "vision:efficientnet_b0",
    "bert-mini": "text:bert_mini",
    "bert-base": "text:bert_base",
    "gpt-mini": "text:gpt_mini",
    "gpt2": "text:gpt2",
    "llama-mini": "text:llama_mini",
})
"""Recipe name -> `module:function` in this room."""


def prepare(target: str) -> JobFunction:
    """The function behind TARGET, its module imported and the function not called.

    Raises UsageError for an unknown recipe (with the nearest names), a missing package (with the pip line), or
    whatever `load_function` finds wrong with a file.
    """
    if is_path(target):
        return load_function(target)
    if target not in RECIPES:
        raise UsageError(f"there is no recipe {target!r}",
                         f"{nearest(target, RECIPES)}; or give path/to/file.py:function")
    module, function = RECIPES[target].split(":")
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), function)
    except ImportError as error:
        missing = (error.name or str(error)).partition(".")[0]
        raise UsageError(f"the recipe {target} needs {missing}, which is not installed",
                         'pip install "memfit[recipes]"') from error


def load(target: str, settings: Mapping[str, Any] | None = None) -> Job:
    """The Job of TARGET with these settings; `job.name` is the target. Raises UsageError as `prepare` and a call do."""
    return call_target(prepare(target), settings or {}, target)


def recipe(name: str, **settings: Any) -> Job:
    """A ready job by its name: `recipe("vit-mini", batch=64)`."""
    return load(name, settings)
