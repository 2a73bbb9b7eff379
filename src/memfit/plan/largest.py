"""The largest batch for a budget: a size that was itself traced and simulated, never one beyond (Lightning#18426)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from memfit.core.device import Device
from memfit.core.strategy import Choice
from memfit.jobs import Job, batches
from memfit.plan.explore import Candidate, Explorer

_MOST = 1 << 16
_PROBES = 12


def largest_batch(job: Job, device: Device, budget_bytes: int, options: Sequence[tuple[Choice, ...]],
                  limits: Mapping[str, int] | None = None) -> int | None:
    """The largest number of samples that fits with one of the given mixes, found by doubling and halving; every
    size that is returned was simulated. `limits` are bytes that may be away. None if not even one sample fits."""
    sizes = {size: _fits(job, device, budget_bytes, options, size, limits) for size in (1, batches.size(job.batch))}
    good = max((size for size, fits in sizes.items() if fits), default=0)
    if not good:
        return None
    bad = min((size for size, fits in sizes.items() if not fits and size > good), default=None)
    for _ in range(_PROBES):
        trial = good * 2 if bad is None else (good + bad) // 2
        if trial > _MOST or trial == good:
            break
        if _fits(job, device, budget_bytes, options, trial, limits):
            good = trial
        else:
            bad = trial
    return good


def _fits(job: Job, device: Device, budget_bytes: int, options: Sequence[tuple[Choice, ...]], size: int,
          limits: Mapping[str, int] | None) -> bool:
    explorer = Explorer(resized(job, size), device, limits=limits)
    for choices in dict.fromkeys(map(_key, options)):
        candidate = explorer.candidate(options[[_key(o) for o in options].index(choices)])
        if isinstance(candidate, Candidate) and candidate.simulation.peak.high_bytes <= budget_bytes:
            return True
    return False


def _key(choices: tuple[Choice, ...]) -> str:
    return repr(choices)


def resized(job: Job, size: int) -> Job:
    """The job with a batch of `size` samples: the sample batch's own, repeated or cut. No memory: expanded views."""
    samples = batches.size(job.batch)

    def resize(tensor: torch.Tensor) -> Any:
        if tensor.dim() == 0 or tensor.shape[0] != samples:
            return tensor
        if size <= samples:
            return tensor[:size].contiguous()
        return tensor[torch.arange(size) % samples]

    other = copy.copy(job)
    other.batch = batches.map_tensors(job.batch, resize)
    return other
