"""BatchNorm folded into convolutions: only where the trace shows that it may be, the same results, and all put back."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision import models

from memfit.core.strategy import Undo
from memfit.hooks.folding import fold, foldable
from memfit.jobs import Job
from memfit.jobs.modes import evaluating
from memfit.monitor.measure import measure_peak
from memfit.plan.evaluation import predict_evaluation
from memfit.trace import FakeWorld, fake_job
from memfit.trace.evaluation import trace_evaluation
from memfit.train.evaluating import measured_batch, measured_folding


class Branching(nn.Module):
    """Six convolutions, of which two may be folded: others are read twice, written to, called twice, tied or hooked."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1, bias=place % 2 == 0) for place in range(7))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4, affine=place != 1) for place in range(7))
        self.convs[5].weight = self.convs[6].weight
        self.convs[4].register_forward_hook(_see)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](self.convs[0](x)).relu()
        x = self.norms[1](self.convs[1](x))
        twice = self.convs[2](x)
        x = self.norms[2](twice) + twice
        for _ in range(2):
            x = self.norms[3](self.convs[3](x))
        x = self.norms[4](self.convs[4](x))
        written = self.convs[6](self.norms[5](self.convs[5](x)))
        return self.norms[6](written.add_(1)).mean((1, 2, 3))


def _see(module: nn.Module, args: object, output: torch.Tensor) -> None:
    """Somebody looks at what the convolution gives."""


def job_of(model: nn.Module) -> Job:
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.uniform_(module.bias, -1, 1)
    return Job(model, lambda model, batch: model(batch).square().mean(), torch.randn(2, 4, 16, 16), torch.optim.SGD)


def pairs_of(job: Job) -> list[tuple[str, str]]:
    world = FakeWorld()
    fake = fake_job(job, world)
    return foldable(fake.model, trace_evaluation(fake, world))


def test_only_what_nothing_else_reads_is_folded_and_all_is_put_back() -> None:
    job = job_of(Branching())
    pairs = pairs_of(job)
    assert pairs == [("convs.0", "norms.0"), ("convs.1", "norms.1")]
    model = job.model
    with evaluating(model), torch.no_grad():
        before, keys = model(job.batch), list(model.state_dict())
        kept = {name: id(one) for name, one in model.named_parameters()}
        plain, undo = model.convs[0].weight.clone(), Undo()
        fold(model, pairs, undo)
        assert torch.allclose(model(job.batch), before, rtol=1e-5, atol=1e-6)
        assert not torch.equal(model.convs[0].weight, plain)  # it was folded
        undo()
        assert torch.equal(model(job.batch), before)
    assert list(model.state_dict()) == keys and {name: id(one) for name, one in model.named_parameters()} == kept
    assert all("forward" not in module.__dict__ for module in model.modules())
    assert model.training and all(module.training for module in model.modules())


def test_resnet_as_predicted_before_and_after() -> None:
    torch.manual_seed(0)
    job = Job(models.resnet18(num_classes=10), lambda model, batch: model(batch).square().mean(), torch.randn(2, 3, 64, 64),
              torch.optim.SGD)
    predicted = predict_evaluation(job, folded=True)
    assert len(predicted.pairs) == 20 and predicted.folded_operators == predicted.operators - 40  # and their counters
    measured = measured_batch(job, graph=True)
    assert predicted.peak_bytes == pytest.approx(measured["peak_bytes"], rel=0.02)
    assert predicted.graph_peak_bytes == pytest.approx(measured["graph_peak_bytes"], rel=0.02)
    assert measured["peak_bytes"] < measured["graph_peak_bytes"]
    folded = measured_folding(job, predicted.pairs)
    assert predicted.folded_peak_bytes == pytest.approx(folded["peak_bytes"], rel=0.02)
    assert 0 < folded["max_rel_output_diff"] < 1e-5
    with torch.no_grad():  # what was folded without being kept is gone
        resident = [*job.model.parameters(), *job.model.buffers(), job.batch]
        assert measure_peak(lambda: None, resident) == pytest.approx(predicted.resident_bytes, rel=0.002)
