"""One batch of an evaluation, measured: with and without a graph, and with normalisations folded; and all outputs, kept."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from memfit.core.errors import UsageError
from memfit.core.strategy import Undo
from memfit.hooks.folding import fold
from memfit.jobs import Job, batches
from memfit.jobs.modes import evaluating
from memfit.monitor.measure import measure_peak

_TIMES = 5
HOST = "host"


def measured_batch(job: Job, *, graph: bool) -> dict[str, Any]:
    """`peak_bytes` of tensors and `batch_s` (a median) of the job's loss in evaluation mode; `graph_peak_bytes` with a graph,
    None where that was not to be run."""
    with evaluating(job.model):
        with torch.no_grad():
            forward(job)
            peak_bytes, batch_s = _peak(job), _seconds(job)
        graph_bytes = _peak(job) if graph else None
    return {"peak_bytes": peak_bytes, "graph_peak_bytes": graph_bytes, "batch_s": batch_s}


def measured_folding(job: Job, pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The same with normalisations folded into their convolutions, whose own weights are let go: `peak_bytes`, `batch_s` beside
    `batch_before_s` of a moment ago, and `max_rel_output_diff`, how far the model's outputs moved (of L2 norms)."""
    with evaluating(job.model), torch.no_grad():
        before, before_s = outputs(job, job.batch), _seconds(job)
        fold(job.model, pairs, Undo(), keep=False)
        after = outputs(job, job.batch)
        moved = float((after - before).norm() / before.norm().clamp_min(1e-30))
        del before, after
        after_s = _seconds(job)
        return {"peak_bytes": _peak(job), "batch_s": after_s, "batch_before_s": before_s, "max_rel_output_diff": moved}


def forward(job: Job, batch: Any = None) -> None:
    """The loss of a batch, let go at once."""
    job.loss(job.model, job.batch if batch is None else batch)


def outputs(job: Job, batch: Any) -> torch.Tensor:
    """What the model gives for a batch: the largest of its tensors of floating point that have a row for each sample."""
    seen: list[torch.Tensor] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        seen.extend(batches.tensors(output))

    handle = job.model.register_forward_hook(keep)
    try:
        forward(job, batch)
    finally:
        handle.remove()
    samples = batches.size(batch)
    rows = [one for one in seen if one.is_floating_point() and one.dim() and one.shape[0] == samples]
    if not rows:
        raise UsageError("the model gives no tensor with a row for each sample", "leave out --collect")
    return max(rows, key=lambda one: one.numel()).detach()


def collect(job: Job, samples: int, place: str) -> tuple[int, ...]:
    """The model's outputs for so many samples of the job's data, a batch at a time, kept on the host (`place` is `host`) or
    written to a file of NumPy's format, whose pages the system writes back as it needs memory. Gives their shape.

    Raises UsageError for a model without such outputs, and for a file that cannot be written.
    """
    kept: Any = None
    done = 0
    with evaluating(job.model), torch.no_grad():
        for batch in _batches(job):
            rows = outputs(job, batch)[: samples - done].cpu()
            rows = rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
            if kept is None:
                kept = _room((samples, *rows.shape[1:]), rows.dtype, place)
            kept[done:done + len(rows)] = rows if place == HOST else rows.numpy()
            done += len(rows)
            del rows
            if done >= samples:
                break
    if place != HOST:
        kept.flush()
    return tuple(kept.shape)


def _room(shape: tuple[int, ...], dtype: torch.dtype, place: str) -> Any:
    if place == HOST:
        return torch.empty(shape, dtype=dtype)
    try:
        return np.lib.format.open_memmap(Path(place), mode="w+", dtype=str(dtype)[6:], shape=shape)
    except OSError as error:
        raise UsageError(f"cannot write outputs to {place}: {error.strerror}",
                         "name a file in a folder that can be written to") from None


def _batches(job: Job) -> Iterator[Any]:
    """The job's data, epoch after epoch; its sample batch where it has none, or where that gives nothing."""
    for epoch in count():
        some = False
        for batch in (job.data(epoch) if callable(job.data) else job.data or ()):
            some = True
            yield batch
        if not some:
            yield job.batch


def _peak(job: Job) -> int:
    resident = [*job.model.parameters(), *job.model.buffers(), *batches.tensors(job.batch)]
    return measure_peak(lambda: forward(job), resident)


def _seconds(job: Job) -> float:
    return statistics.median(_timed(lambda: forward(job)) for _ in range(_TIMES))


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
