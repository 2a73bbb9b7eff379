"""Which weight makes the parts' mean the whole's loss, and that looking for it leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from memfit.core.errors import UsageError
from memfit.jobs import Job
from memfit.jobs.weight_probe import probe_weight


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.head = nn.Embedding(40, 16), nn.Dropout(0.3), nn.Linear(16, 40)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.embed(ids)))


def token_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())


def causal_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["ids"])[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def row_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    rows = zip(model(batch["ids"]), batch["labels"])
    return torch.stack([F.cross_entropy(row, labels) for row, labels in rows]).mean()


def contrastive(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    pooled = F.normalize(model(batch["ids"]).mean(1))
    return F.cross_entropy(pooled @ pooled.T, torch.arange(len(pooled)))


def language_job(loss: Any, rows: int = 6, length: int = 24) -> Job:
    torch.manual_seed(0)
    ids = torch.randint(0, 40, (rows, length))
    return Job(Language(), loss, {"ids": ids, "labels": ids.clone()}, torch.optim.SGD)


@pytest.mark.parametrize(("loss", "name"), [
    (token_loss, "labels"), (causal_loss, "labels without each row's first"), (row_loss, "samples"),
    (contrastive, None)])
def test_full_rows_do_not_hide_what_counts(loss: Any, name: str | None) -> None:
    finding = probe_weight(language_job(loss))
    assert finding.name == name
    assert bool(finding.reason) == (name is None)
    assert all(difference > 50 * finding.tolerance for _, difference in finding.differences[:-1])


def test_it_leaves_generators_buffers_and_dropout_alone() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    batch = (torch.randn(8, 4), torch.arange(8) % 3)
    job = Job(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), batch, torch.optim.SGD)
    state, buffers = torch.get_rng_state(), {k: v.clone() for k, v in model.named_buffers()}
    assert probe_weight(job).name == "samples"
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(buffers[k], v) for k, v in model.named_buffers())
    assert model[2].p == 0.5 and all(m.training for m in model)
    assert all(p.grad is None for p in model.parameters())


def test_a_user_weight_is_checked_and_a_batch_of_one_refused() -> None:
    job = language_job(token_loss)
    job.weight = lambda batch: 1.0
    assert "by the job's own weight" in probe_weight(job).reason
    with pytest.raises(UsageError, match="one sample"):
        probe_weight(language_job(token_loss, rows=1))
