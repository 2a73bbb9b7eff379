"""Which weight makes the weighted mean of a batch's parts the loss of the whole.

Without it gradients of micro-batches add up to something else: token counts differ between parts ("mean of means"),
classes are weighted, or the loss compares the samples of a batch with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from memfit.core.errors import UsageError
from memfit.jobs import batches
from memfit.jobs.dropout import dropout_off
from memfit.jobs.randomness import random_state_kept
from memfit.jobs.weights import IGNORED, candidates, labels

if TYPE_CHECKING:
    from memfit.jobs.job import Job

Weight = Callable[[Any], float]

_SAMPLES = 4
_TOLERANCE, _HALF_TOLERANCE = 2e-5, 2e-2  # rounding over other batch sizes gives 1e-7 to 1e-6 (1e-3 in half)


@dataclass(frozen=True)
class WeightFinding:
    """`weight` passes (None: none does); `differences` are `(name, relative difference)` of those tried, in order."""

    weight: Weight | None
    name: str | None
    differences: tuple[tuple[str, float], ...]
    tolerance: float

    @property
    def reason(self) -> str:
        """One line on why micro-batches are out, with the numbers; empty if a weight passes."""
        if self.weight is not None:
            return ""
        tried = ", ".join(f"by {name} {difference:.2g}" for name, difference in self.differences)
        return (f"no weight makes the mean of the parts' losses the loss of the whole (relative difference weighted "
                f"{tried}; allowed {self.tolerance:g}): the loss weights its classes or compares samples, or wants "
                f"Job(weight=...)")


def probe_weight(job: Job) -> WeightFinding:
    """Try the job's own weight, or the usual ones in turn, on 2 to 4 samples of its batch.

    Forward only, dropout off, BatchNorm by its running statistics; generators and buffers are as before afterwards.
    Raises UsageError where the batch cannot be split, or the loss cannot be computed on its samples.
    """
    reason = batches.why_unsplittable(job.batch)
    if reason:
        raise UsageError(f"the batch cannot be split into micro-batches: {reason}", "leave micro-batches out")
    tried = weights_of(job)
    with random_state_kept(), _buffers_kept(job.model), _batch_norm_by_statistics(job.model), dropout_off(job.model):
        cases = _cases(job)
    tolerance = _HALF_TOLERANCE if _is_half(job.model) else _TOLERANCE
    differences: list[tuple[str, float]] = []
    for weight in tried:
        difference = max(_difference(case, weight) for case in cases)
        differences.append((name_of(weight), difference))
        if difference <= tolerance:
            return WeightFinding(weight, name_of(weight), tuple(differences), tolerance)
    return WeightFinding(None, None, tuple(differences), tolerance)


def weights_of(job: Job) -> list[Weight]:
    """The weights to try: the job's own, or the usual ones."""
    return [job.weight] if job.weight is not None else list(candidates(job.batch))


@dataclass(frozen=True)
class _Case:
    """One splitting: the loss of the whole, the parts and their losses."""

    whole: float
    parts: list[Any]
    losses: list[float]


def _cases(job: Job) -> list[_Case]:
    """The chosen samples as they are, and again with labels taken away where the loss knows -100, so that parts count
    differently; each split unevenly, in two ways."""
    chosen = _choose(job.batch)
    found = [_case(job, chosen, sizes) for sizes in _sizes(batches.size(chosen))]
    thinned = _thinned(chosen)
    if thinned is not None:
        with suppress(IndexError, RuntimeError, ValueError):  # this loss does not know -100: all its labels count
            found += [case for sizes in _sizes(batches.size(thinned)) if _is_finite(case := _case(job, thinned, sizes))]
    return found


def _case(job: Job, batch: Any, sizes: list[int]) -> _Case:
    parts, start = [], 0
    for size in sizes:
        parts.append(batches.take(batch, start, start + size))
        start += size
    return _Case(_loss(job, batch), parts, [_loss(job, part) for part in parts])


def _loss(job: Job, batch: Any) -> float:
    with torch.no_grad():
        loss = job.loss(job.model, batch)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise UsageError("loss(model, batch) gives no scalar tensor", "return the mean loss of the batch")
    return float(loss)


def _difference(case: _Case, weight: Weight) -> float:
    weights = [float(weight(part)) for part in case.parts]
    if sum(weights) <= 0:
        return float("inf")
    mean = sum(w * loss for w, loss in zip(weights, case.losses) if w > 0) / sum(weights)
    difference = abs(mean - case.whole) / max(abs(case.whole), 1e-6)
    return difference if difference == difference else float("inf")


def _is_finite(case: _Case) -> bool:
    return abs(case.whole) < float("inf")


def _sizes(samples: int) -> list[list[int]]:
    if samples == 2:
        return [[1, 1]]
    return [[1, samples - 1], [samples - 2, 2]] if samples > 3 else [[1, 2], [2, 1]]


def _choose(batch: Any) -> Any:
    """Up to four samples, with different classes where one integer a sample says so: weighted classes show then."""
    samples = batches.size(batch)
    rows = _different(batch, samples) if samples > _SAMPLES else list(range(samples))
    index = torch.tensor(rows)
    return batches.map_tensors(batch, lambda t: t[index] if t.dim() > 0 and t.shape[0] == samples else t)


def _different(batch: Any, samples: int) -> list[int]:
    rows: list[int] = []
    for tensor in batches.tensors(batch):
        if tensor.dim() == 1 and tensor.shape[0] == samples and not tensor.is_floating_point():
            seen: dict[int, int] = {}
            for row, value in enumerate(tensor.tolist()):
                seen.setdefault(value, row)
            rows = list(seen.values())[:_SAMPLES]
            break
    spread = [row * samples // _SAMPLES for row in range(_SAMPLES)]
    rows += [row for row in [*spread, *range(samples)] if row not in rows]
    return sorted(rows[:_SAMPLES])


def _thinned(batch: Any) -> Any:
    """The batch with few labels left: two of the first row, up to four of each other row but not its first. Few
    labels differ in their mean loss, and labels, labels without the first, and samples then count differently.
    None where rows have no several labels."""
    found = labels(batch)
    if found is None or found.is_floating_point() or found.dim() < 2 or found.shape[-1] < 3:
        return None
    if found.device.type != "cpu" and not bool((found == IGNORED).any()):
        return None  # a label out of range would end the process there, not raise
    changed = torch.full_like(found, IGNORED)
    for row, (given, kept) in enumerate(zip(found.flatten(1), changed.view(len(found), -1))):
        counted = (given != IGNORED).nonzero().flatten()
        places = counted[:2] if row == 0 else counted[1:5]
        kept[places] = given[places]
    return batches.map_tensors(batch, lambda t: changed if t is found else t)


def _is_half(model: nn.Module) -> bool:
    return any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())


def name_of(weight: Weight) -> str:
    """What people read of a weight; two of a job's are never called alike."""
    names = {"label_count": "labels", "shifted_label_count": "labels without each row's first",
             "sample_count": "samples"}
    name = getattr(weight, "__name__", "weight")
    return names.get(name, "the job's own weight")


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


@contextmanager
def _batch_norm_by_statistics(model: nn.Module) -> Iterator[None]:
    """A batch's own statistics would make every loss one that compares samples, and one sample has none."""
    training = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training
                and m.running_mean is not None]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
