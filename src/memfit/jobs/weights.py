"""What a batch counts for in the mean loss: the weight that makes the mean of parts the mean of the whole.

"mean of means is not the mean": torchtune#1875, transformers#34191.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from memfit.core.errors import UsageError
from memfit.jobs import batches

if TYPE_CHECKING:
    from memfit.jobs.job import Job

IGNORED = -100


def labels(batch: Any) -> torch.Tensor | None:
    """The batch's labels tensor, if it names one."""
    if isinstance(batch, torch.Tensor):
        return None
    try:
        found = batch["labels"]
    except (TypeError, KeyError, IndexError):
        found = getattr(batch, "labels", None)
    return found if isinstance(found, torch.Tensor) else None


def label_count(batch: Any) -> float:
    """Labels that are not -100."""
    found = labels(batch)
    if found is None:
        raise UsageError("the batch has no labels to count")
    return float((found != IGNORED).sum().item())


def shifted_label_count(batch: Any) -> float:
    """Labels that are not -100, without the first of each row: causal language models predict the next token."""
    found = labels(batch)
    if found is None:
        raise UsageError("the batch has no labels to count")
    return float((found[..., 1:] != IGNORED).sum().item())


def sample_count(batch: Any) -> float:
    """Number of samples."""
    return float(batches.size(batch))


def candidates(batch: Any) -> list[Callable[[Any], float]]:
    """Weights to try, in the contract's order."""
    found = labels(batch)
    if found is None or found.is_floating_point():
        return [sample_count]
    return [label_count, *([shifted_label_count] if found.dim() > 1 else []), sample_count]


def weigh(job: Job, batch: Any) -> float:
    """The weight of one part, by the job's own function or the one that the probe found."""
    return float((job.weight or sample_count)(batch))
