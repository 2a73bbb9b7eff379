"""Saved tensors on disk: the same bits, each storage once, predicted as measured, slots used again."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memfit.apply import apply_choices
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.strategy import Choice
from memfit.hooks.away import Store
from memfit.jobs import Job, run_step
from memfit.monitor.measure import job_tensors, measure_peak
from memfit.plan.explore import Candidate, Explorer
from memfit.simulate import simulate
from memfit.strategies.exact.offload_activations import STRATEGY
from memfit.strategies.exact.offload_activations.packing import Packing
from memfit.strategies.exact.offload_activations.slots import Slots, slot_bytes
from memfit.trace import FakeWorld, fake_job, trace_step
from memfit.trace.usage import usage

CPU = Device("cpu", "cpu", 1 << 40, {}, 1e10)
WIDTH, ROWS = 64, 128


def choice(least_bytes: int = 1024, modules: tuple[str, ...] = ()) -> Choice:
    return Choice("offload-activations",
                  {"place": "disk", "folder": "", "least_bytes": least_bytes, "modules": list(modules)})


class Attention(nn.Module):
    """Three views of one product are saved, a buffer, a mask that is drawn, and a value that is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.three, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.zeros(ROWS, ROWS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.three(x).chunk(3, -1)
        weights = ((q @ k.transpose(1, 2)) * (1 + self.mask)).softmax(-1)
        return F.dropout(self.out(weights @ v).mul_(0.5).exp_(), 0.3) + x


def job_of(layers: int = 2) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(*(Attention() for _ in range(layers)))
    return Job(model, lambda m, x: m(x).square().mean(), torch.randn(2, ROWS, WIDTH),
               lambda ps: torch.optim.SGD(ps, lr=0.1))


@pytest.mark.parametrize("chosen", [choice(), choice(4 * ROWS * ROWS), choice(1, ("1",))], ids=["all", "large", "second"])
def test_bits_stay_and_both_steps_are_predicted_to_the_byte(chosen: Choice) -> None:
    world = FakeWorld()
    plain, job, fake = job_of(), job_of(), fake_job(job_of(), world)
    apply_choices(fake, [chosen])
    undo = apply_choices(job, [chosen])
    torch.manual_seed(3)
    unplanned = [measure_peak(lambda: run_step(plain, plain.batch), list(job_tensors(plain))) for _ in range(2)]
    torch.manual_seed(3)
    measured = [measure_peak(lambda: run_step(job, job.batch), list(job_tensors(job))) for _ in range(2)]
    predicted = [simulate(trace_step(fake, world), CPU).peak.allocated_bytes for _ in range(2)]
    assert all(abs(one - two) <= 64 for one, two in zip(predicted, measured, strict=True))
    assert measured[1] < 0.9 * unplanned[1]
    undo()
    for one in (plain, job):
        torch.manual_seed(4)
        run_step(one, one.batch)
    for one, two in zip(plain.model.parameters(), job.model.parameters(), strict=True):
        assert torch.equal(one, two)


class Watched(Slots):
    """Slots that note what is asked for."""

    def __init__(self) -> None:
        super().__init__(Store("disk"))
        self.asked: list[int] = []

    def take(self, nbytes: int, like: torch.Tensor) -> torch.Tensor:
        self.asked.append(nbytes)
        return super().take(nbytes, like)


def test_a_storage_is_moved_once_and_what_stays_alive_anyway_never() -> None:
    slots, made = Watched(), torch.randn(300, 300)
    packing, weight, batch = Packing(slots, 1024, False), nn.Parameter(torch.randn(300, 300)), torch.randn(300, 300)
    with packing.forward([weight, batch]):
        x = (batch @ weight).sin()  # saves batch, weight.t() and the product
        views = [x[:100], x[100:200].t(), x]
        loss: Any = sum((view * view.detach()).sum() for view in views)  # saves each view twice
        constant = (x * made).sum()
    assert slots.asked == [360_000] * 3  # the product, its sine, and the constant, which nobody said stays
    (loss + constant).backward()
    assert weight.grad is not None
    expected = weight.grad.clone()
    weight.grad = None
    x = (batch @ weight).sin()
    views = [x[:100], x[100:200].t(), x]
    (sum((view * view.detach()).sum() for view in views) + (x * made).sum()).backward()
    assert torch.equal(weight.grad, expected)


def test_a_value_that_is_changed_in_place_after_it_was_saved_is_kept_as_it_was() -> None:
    packing, x = Packing(Slots(Store("disk")), 1024, False), torch.randn(512, requires_grad=True)
    with packing.forward([]):
        y = x * 2.0
        loss = (y * y).sum()  # saves y; without the strategy autograd refuses this
        with torch.no_grad():
            y.zero_()
        loss = loss + (y.sin() * 3.0).sum()
    loss.backward()
    assert x.grad is not None and torch.allclose(x.grad, 8 * x.detach() + 6.0)


def test_slots_are_used_again_and_come_back_when_a_graph_is_dropped() -> None:
    slots = Slots(Store("disk"))
    packing, x = Packing(slots, 1024, False), torch.randn(512, requires_grad=True)

    def forward() -> torch.Tensor:
        with packing.forward([x]):
            return (x.sin().exp() * 2).sin().sum()

    forward().backward()
    made = slots.store.made_bytes
    for backward in (True, False, True):
        loss = forward()
        if backward:
            loss.backward(retain_graph=True)
            loss.backward()  # read again from the slots
        del loss
        gc.collect()
    assert slots.store.made_bytes == made > 0
    assert len(packing._near) <= 2


def test_free_slots_are_given_up_before_a_disk_counts_as_full() -> None:
    slots = Slots(Store("disk", limit_bytes=10_000))
    slots.give_back(slots.take(8_000, torch.empty(0)))
    assert slots.take(9_000, torch.empty(0)).numel() == slot_bytes(9_000)
    with pytest.raises(UsageError, match="it may take 10000"):
        slots.take(2_000, torch.empty(0))


@pytest.mark.parametrize("nbytes", [1, 7, 4096, 4097, 10_000_001])
def test_slots_are_at_most_an_eighth_too_large(nbytes: int) -> None:
    assert nbytes <= slot_bytes(nbytes) <= nbytes * 1.125 + 1
    assert slot_bytes(slot_bytes(nbytes)) == slot_bytes(nbytes)


def test_with_checkpoint_only_what_it_keeps_is_moved() -> None:
    explorer = Explorer(job_of(layers=8), CPU)
    kept = Choice("checkpoint", {"modules": [str(layer) for layer in range(8)]})
    alone, both, moved = (explorer.candidate(some) for some in ([kept], [kept, choice()], [choice()]))
    assert isinstance(alone, Candidate) and isinstance(both, Candidate) and isinstance(moved, Candidate)
    assert at_end_of_forward(both) == at_end_of_forward(alone) - 8 * 2 * ROWS * WIDTH * 4
    assert 0 < both.simulation.away["disk"] < 0.2 * moved.simulation.away["disk"]


def at_end_of_forward(candidate: Candidate) -> int:
    start = next(start for name, start in candidate.trace.phases if name == "backward")
    return int(usage(candidate.trace).curve[start])


def test_choices_begin_with_the_largest_and_a_card_uses_its_host() -> None:
    world = FakeWorld()
    fake = fake_job(job_of(), world)
    trace = trace_step(fake, world)
    for device, place in ((CPU, "disk"), (Device("card", "cuda", 1 << 34, {}, 1e12), "host")):
        found = STRATEGY.choices(fake, trace, device)
        sizes = [one["least_bytes"] for one in found]
        assert sizes == sorted(sizes, reverse=True) and len(sizes) > 1
        assert {one["place"] for one in found} == {place}


def test_for_a_card_it_is_predicted_with_copies_on_their_way() -> None:
    explorer = Explorer(job_of(), "rtx3060")
    settings = {"place": "host", "folder": "", "least_bytes": 1024, "modules": []}
    found = explorer.candidate([Choice("offload-activations", settings)])
    assert isinstance(found, Candidate)
    saved_bytes = explorer.plain.simulation.peak.allocated_bytes - found.simulation.peak.allocated_bytes
    assert 0.5 * found.simulation.away["host"] < saved_bytes < found.simulation.away["host"]
    small = Explorer(job_of(), "rtx3060", limits={"host": 1000}).candidate([Choice("offload-activations", settings)])
    assert isinstance(small, str) and "--host-budget" in small


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
def test_on_a_card_copies_run_beside_the_kernels_and_the_bits_stay() -> None:
    plain, job = (job_of(layers=6) for _ in range(2))
    for one in (plain, job):
        one.model.to("cuda")
        one.batch = one.batch.to("cuda")
    apply_choices(job, [Choice("offload-activations", {"place": "host", "least_bytes": 1024})])
    peaks = []
    for one in (plain, job):
        for step in range(3):
            torch.manual_seed(step)
            torch.cuda.reset_peak_memory_stats()
            run_step(one, one.batch)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < peaks[0]
    assert all(torch.equal(one, two) for one, two in zip(plain.model.parameters(), job.model.parameters(), strict=True))


@pytest.mark.parametrize(("setting", "value"), [("least_bytes", 0), ("least_bytes", "1MiB"), ("modules", ["nowhere"]),
                                                ("modules", "0"), ("place", "moon"), ("folder", "/nowhere")])
def test_settings_that_make_no_sense_are_refused(setting: str, value: Any) -> None:
    job = job_of()
    loss = job.loss
    with pytest.raises(UsageError):
        apply_choices(job, [Choice("offload-activations", {**choice().settings, setting: value})])
    assert job.loss is loss and not any("forward" in vars(module) for module in job.model.modules())
