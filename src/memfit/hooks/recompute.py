"""Activation checkpointing of one module, as an override of its forward."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from memfit.hooks.batchnorm import frozen_statistics, keeps_statistics
from memfit.hooks.forward import call_forward


def recomputed(module: nn.Module, previous: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> Any:
    """Run the module keeping only its inputs, and run it again when backward needs what it saved.

    Bitwise: the same random numbers (dropout), autocast state and batch statistics; running statistics move once.
    Inputs that need no gradient are right too (non-reentrant).
    """
    if not torch.is_grad_enabled():
        return call_forward(module, previous, *args, **kwargs)
    moving = any(keeps_statistics(inner) for inner in module.modules())
    return checkpoint(
        partial(_with_keywords, module, previous, kwargs), *args, use_reentrant=False, preserve_rng_state=True,
        context_fn=partial(_contexts, module) if moving else noop_context_fn)


def _with_keywords(module: nn.Module, previous: Callable[..., Any] | None, kwargs: dict[str, Any], *args: Any) -> Any:
    return call_forward(module, previous, *args, **kwargs)  # keywords stay ours: `checkpoint` has names of its own


def _contexts(module: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """What is entered around the forward, and around its recomputation."""
    return nullcontext(), frozen_statistics(module)
