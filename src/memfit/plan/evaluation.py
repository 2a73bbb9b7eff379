"""What evaluating a job needs on a device: without a graph, with one, with normalisations folded, and all outputs kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memfit.core.device import Device
from memfit.core.errors import DoesNotFit
from memfit.core.strategy import Undo
from memfit.core.trace import Trace
from memfit.hooks.folding import fold, foldable
from memfit.jobs import Job, batches
from memfit.plan.target import named_device, target_device
from memfit.report.format import gib
from memfit.simulate import simulate
from memfit.trace import FakeWorld, fake_job
from memfit.trace.cuda import target_of
from memfit.trace.evaluation import outputs_bytes, trace_evaluation


@dataclass(frozen=True)
class Evaluating:
    """One batch, predicted: peaks of tensor bytes, of which `resident_bytes` are weights, buffers and the batch; how many
    operators run without a graph; `outputs_bytes` the model gives. `pairs` are convolutions and the normalisations folded into
    them."""

    samples: int
    resident_bytes: int
    peak_bytes: int
    graph_peak_bytes: int
    operators: int
    outputs_bytes: int
    pairs: tuple[tuple[str, str], ...] = ()
    folded_peak_bytes: int | None = None
    folded_operators: int | None = None

    def collected_bytes(self, samples: int) -> int:
        """What the outputs of so many samples take, kept all together."""
        return -(-self.outputs_bytes * samples // self.samples)


def predict_evaluation(job: Job, *, device: str | Device | None = None, folded: bool = False) -> Evaluating:
    """Trace and simulate the evaluation of the job's batch; nothing runs. Raises Untraceable."""
    world = FakeWorld(target_of(named_device(device)))
    fake = fake_job(job, world)
    where = target_device(device)
    trace = trace_evaluation(fake, world)
    graph = trace_evaluation(fake, world, graph=True)
    samples = max(1, batches.size(fake.batch))
    seen = Evaluating(samples, trace.resident_bytes, _peak(trace, where), _peak(graph, where), len(trace.ops),
                      outputs_bytes(trace, samples))
    return _with_folding(seen, fake, world, trace, where) if folded else seen


def _with_folding(seen: Evaluating, fake: Job, world: FakeWorld, trace: Trace, where: Device) -> Evaluating:
    pairs = foldable(fake.model, trace)
    with world.mode.silent(), world.mode:
        fold(fake.model, pairs, Undo(), keep=False)
    after = trace_evaluation(fake, world)
    return replace(seen, pairs=tuple(pairs), folded_peak_bytes=_peak(after, where), folded_operators=len(after.ops))


def _peak(trace: Trace, where: Device) -> int:
    return simulate(trace, where).peak.allocated_bytes


def check_collected(seen: Evaluating, samples: int, limit_bytes: int, what: str) -> None:
    """Raise DoesNotFit where keeping the outputs of all samples needs more than the limit, with the numbers."""
    needed = seen.collected_bytes(samples)
    if needed > limit_bytes:
        each = gib(seen.collected_bytes(1))
        raise DoesNotFit(
            f"the outputs of {samples} samples are {gib(needed)} ({each} each), and {what} is {gib(limit_bytes)}",
            "reduce them batch by batch (a metric, or argmax before collecting), or write them to disk (--collect FILE.npy)")
