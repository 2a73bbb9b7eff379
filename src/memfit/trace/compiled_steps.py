"""torchao's optimizers compile their own step: it is traced as Inductor's code, and never run as that on fake tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import nn

from memfit.core.errors import Untraceable
from memfit.trace.compiled import CompiledOnFakes
from memfit.trace.recorder import RecordingMode

_MODULE = "torchao.optim.adam"


@contextmanager
def compiled_steps(mode: RecordingMode) -> Iterator[None]:
    """Inside, what torchao's optimizers compile is seen by `mode`. Raises Untraceable when one steps as on a card: Inductor
    writes other code for it."""
    module = sys.modules.get(_MODULE)
    if module is None:
        yield
        return

    def compiling(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        if mode.target is not None:
            raise Untraceable("torchao's optimizer compiles its step, and what it needs on a card is not known here",
                              "give torch's AdamW and let memfit choose: --fidelity reduced allows optimizer-8bit, with the "
                              "same states")
        return lambda *args: _on_fakes(function)(mode, _NO_MODULE, *args)

    standing_in = ModuleType("torch")
    standing_in.__dict__.update(vars(torch), compile=compiling)
    with mock.patch.object(module, "torch", standing_in):
        yield


@lru_cache(maxsize=16)
def _on_fakes(function: Callable[..., Any]) -> CompiledOnFakes:
    return CompiledOnFakes(lambda module, *args: function(*args))


_NO_MODULE = nn.Identity()
