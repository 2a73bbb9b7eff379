"""Evaluation as a phase: predicted with and without a graph, its outputs counted, refused, or streamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from memfit.core.errors import DoesNotFit, UsageError
from memfit.jobs import Job
from memfit.plan.evaluation import check_collected, predict_evaluation
from memfit.train.evaluating import HOST, collect, measured_batch

VOCABULARY, LENGTH, ROWS = 3000, 16, 4


class Language(nn.Module):
    """Logits over a vocabulary, [batch, length, classes], with dropout that evaluation switches off."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY)
        self.mix = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Dropout(0.5), nn.Linear(256, 32))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embed(ids)))


def loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def job_of(data: list[torch.Tensor] | None = None) -> Job:
    torch.manual_seed(0)
    return Job(Language(), loss, torch.randint(0, VOCABULARY, (ROWS, LENGTH)), torch.optim.AdamW, data=data)


def test_peaks_with_and_without_a_graph_as_measured() -> None:
    job = job_of()
    predicted, measured = predict_evaluation(job), measured_batch(job, graph=True)
    assert predicted.peak_bytes == pytest.approx(measured["peak_bytes"], rel=0.02)
    assert predicted.graph_peak_bytes == pytest.approx(measured["graph_peak_bytes"], rel=0.02)
    assert predicted.resident_bytes < predicted.peak_bytes < predicted.graph_peak_bytes
    assert job.model.training and all(p.grad is None for p in job.model.parameters())
    assert measured_batch(job, graph=False)["graph_peak_bytes"] is None


def test_all_logits_are_counted_and_refused_with_their_size() -> None:
    predicted = predict_evaluation(job_of())
    each = LENGTH * VOCABULARY * 4
    assert predicted.outputs_bytes == ROWS * each and predicted.collected_bytes(1000) == 1000 * each
    check_collected(predicted, 1000, 1000 * each, "the host budget")
    with pytest.raises(DoesNotFit) as refused:
        check_collected(predicted, 1001, 1000 * each, "the host budget")
    assert "1001 samples are 183.3 MiB (187.5 KiB each)" in refused.value.message and "argmax" in refused.value.advice


@pytest.mark.parametrize("place", [HOST, "file"])
def test_outputs_are_collected_a_batch_at_a_time(tmp_path: Path, place: str) -> None:
    data = [torch.randint(0, VOCABULARY, (size, LENGTH)) for size in (3, 2)]
    job = job_of(data)
    where = place if place == HOST else str(tmp_path / "logits.npy")
    assert collect(job, 7, where) == (7, LENGTH, VOCABULARY)
    if place == HOST:
        return
    job.model.eval()
    with torch.no_grad():
        expected = torch.cat([job.model(batch) for batch in (*data, data[0])])[:7]
    written = np.load(where, mmap_mode="r")
    assert written.dtype == np.float32 and torch.equal(torch.from_numpy(written.copy()), expected)


def test_outputs_that_cannot_be_collected_say_so(tmp_path: Path) -> None:
    scalar = Job(nn.Linear(3, 1), lambda model, batch: model(batch.mean(0)).mean(), torch.randn(4, 3), torch.optim.SGD)
    with pytest.raises(UsageError, match="no tensor with a row for each sample"):
        collect(scalar, 2, HOST)
    with pytest.raises(UsageError, match="cannot write outputs"):
        collect(job_of(), 2, str(tmp_path / "nowhere" / "out.npy"))
