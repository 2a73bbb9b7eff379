"""Optimizer states on disk: the same bits, born there, predicted as measured, saved and resumed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from memfit.apply import apply_choices
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.strategy import Choice
from memfit.hooks.away import Store
from memfit.jobs import Job, run_step
from memfit.jobs.away import is_away
from memfit.launch import process_memory
from memfit.monitor.measure import job_tensors, measure_peak
from memfit.plan.explore import Explorer
from memfit.simulate import simulate
from memfit.strategies.exact.offload_optimizer import STRATEGY
from memfit.trace import FakeWorld, fake_job, trace_step
from memfit.train.checkpoints import Place, load_checkpoint, save_checkpoint

CPU = Device("cpu", "cpu", 1 << 40, {}, 1e10)
CHOICE = Choice("offload-optimizer", {"place": "disk", "folder": "", "least_bytes": 65536})
STATE_BYTES = 2 * (160 * 512 + 512 * 512 + 512 * 160) * 4
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9}, "AdamW": {}, "AdamW foreach": {"foreach": True, "amsgrad": True},
    "AdamW fused": {"fused": True}, "RMSprop": {"momentum": 0.9}, "Adagrad": {}, "Adadelta": {}, "Adamax": {}, "Rprop": {},
    "NAdam": {}, "RAdam": {}, "ASGD": {}, "Adafactor": {},
}


class OwnMomentum(torch.optim.Optimizer):
    """A user's own, which keeps its state in ways of its own."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            mean = self.state[p].setdefault("mean", p.grad.clone())
            mean.lerp_(p.grad, 0.1)
            self.state[p].update(seen=self.state[p].get("seen", 0) + 1)
            p -= 0.1 * mean


def job_of(kind: str = "AdamW", **settings: Any) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(160, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 160))
    optimizer: Any = OwnMomentum if kind == "own" else getattr(torch.optim, kind.split()[0])
    return Job(model, lambda m, x: m(x).square().mean(), torch.randn(4, 160), lambda ps: optimizer(ps, **settings))


def states(job: Job) -> list[torch.Tensor]:
    return [value for p in job.model.parameters() for value in job.optimizer.state[p].values()
            if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("kind", [*OPTIMIZERS, "own"])
def test_every_optimizer_keeps_its_bits_and_its_large_states_are_away(kind: str) -> None:
    plain, job = (job_of(kind, **OPTIMIZERS.get(kind, {})) for _ in range(2))
    undo = apply_choices(job, [CHOICE])
    for _ in range(3):
        assert torch.equal(run_step(plain, plain.batch).loss, run_step(job, job.batch).loss)
    assert [is_away(one) for one in states(job)] == [one.nbytes >= 64 * 1024 for one in states(job)]
    undo()
    assert not any(is_away(one) for one in states(job))
    run_step(plain, plain.batch), run_step(job, job.batch)
    for one, two in zip([*plain.model.parameters(), *states(plain)], [*job.model.parameters(), *states(job)], strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("more", [(), ("step-in-backward",), ("fused-step",), ("fused-step", "step-in-backward")])
def test_both_steps_are_predicted_to_the_byte(more: tuple[str, ...]) -> None:
    """Neither the first step nor any later one has the states in memory."""
    choices = [CHOICE, *(Choice(name) for name in more)]
    world = FakeWorld()
    fake, job = fake_job(job_of(), world), job_of()
    apply_choices(fake, choices), apply_choices(job, choices)
    predicted = [simulate(trace_step(fake, world), CPU) for _ in range(2)]
    measured = [measure_peak(lambda: run_step(job, job.batch), list(job_tensors(job))) for _ in range(2)]
    for one, peak in zip(predicted, measured, strict=True):
        assert abs(one.peak.allocated_bytes - peak) <= 64
        assert one.away == {"disk": STATE_BYTES}


def test_pages_on_disk_are_no_private_memory_and_the_files_are_gone(tmp_path: Path) -> None:
    store = Store("disk", str(tmp_path))
    before = process_memory()
    kept = [store.empty(torch.empty(0), (2**20,), (1,), torch.float32).fill_(1.0) for _ in range(20)]
    after = process_memory()
    assert before is not None and after is not None and sum(one.nbytes for one in kept) == 80 * 2**20
    assert after.resident_bytes - before.resident_bytes < 16 * 2**20 < 60 * 2**20 < after.file_bytes - before.file_bytes
    assert after.data_bytes - before.data_bytes < 16 * 2**20
    assert not list(tmp_path.iterdir())


def test_states_that_were_there_before_are_moved_and_load_state_dict_keeps_them_away() -> None:
    plain, job = (job_of() for _ in range(2))
    run_step(plain, plain.batch), run_step(job, job.batch)
    apply_choices(job, [CHOICE])
    assert sum(one.nbytes for one in states(job) if is_away(one)) == STATE_BYTES
    saved = copy.deepcopy(job.optimizer.state_dict())
    run_step(job, job.batch)
    job.optimizer.load_state_dict(saved)
    assert sum(one.nbytes for one in states(job) if is_away(one)) == STATE_BYTES
    assert all(torch.equal(one, two) for one, two in zip(states(plain), states(job), strict=True))


def test_copies_and_pickles_of_the_optimizer_are_ordinary() -> None:
    job = job_of()
    apply_choices(job, [CHOICE])
    run_step(job, job.batch)
    saved = job.optimizer.state_dict()["state"]
    for other in (pickle.loads(pickle.dumps(saved)), copy.deepcopy(saved)):
        assert type(other[0]) is dict
        assert not any(is_away(value) for state in other.values() for value in state.values())
        assert torch.equal(other[0]["exp_avg"], states(job)[1])


@pytest.mark.parametrize("choices", [[CHOICE], []], ids=["with it", "without it"])
def test_a_checkpoint_is_gone_on_from_with_and_without_it(tmp_path: Path, choices: list[Choice]) -> None:
    plain, first = (job_of() for _ in range(2))
    apply_choices(first, [CHOICE])
    for _ in range(2):
        run_step(plain, plain.batch), run_step(first, first.batch)
    save_checkpoint(tmp_path, first, Place(step=2), [CHOICE])
    second = job_of()
    apply_choices(second, choices)
    load_checkpoint(tmp_path / "checkpoints" / "step-00000002", second, choices)
    assert sum(is_away(one) for one in states(second)) == (6 if choices else 0)
    run_step(plain, plain.batch), run_step(second, second.batch)
    assert all(torch.equal(one, two) for one, two in zip(states(plain), states(second), strict=True))
    assert all(torch.equal(one, two) for one, two in zip(plain.model.parameters(), second.model.parameters(), strict=True))


def test_what_it_cannot_do_is_said() -> None:
    assert STRATEGY.choices(job_of("SGD", lr=0.1), trace_step(fake_job(job_of("SGD", lr=0.1), w := FakeWorld()), w), CPU) == []
    with pytest.raises(UsageError, match="on the host already"):
        apply_choices(job_of(), [Choice("offload-optimizer", {"place": "host", "folder": "", "least_bytes": 65536})])
    with pytest.raises(UsageError, match="no folder that can be written to"):
        apply_choices(job_of(), [Choice("offload-optimizer", {"place": "disk", "folder": "/nowhere", "least_bytes": 65536})])


def test_a_disk_that_fills_half_way_leaves_the_job_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, job = (job_of() for _ in range(2))
    run_step(plain, plain.batch), run_step(job, job.batch)
    monkeypatch.setattr("memfit.hooks.away.free_disk_bytes", lambda _: STATE_BYTES // 2)
    with pytest.raises(UsageError, match=f"it may take {STATE_BYTES // 2}"):
        apply_choices(job, [CHOICE])
    run_step(plain, plain.batch), run_step(job, job.batch)
    assert all(torch.equal(one, two) and not is_away(two) for one, two in zip(states(plain), states(job), strict=True))


def test_for_a_card_one_parameters_states_are_there_at_a_time() -> None:
    """Traced as a card would run it: the copies to it and back are operators of the step."""
    explorer = Explorer(job_of(), "rtx3060")
    host = Choice("offload-optimizer", {"place": "host"})
    plain, alone, both = explorer.plain, explorer.candidate([host]), explorer.candidate([host, Choice("step-in-backward")])
    assert not isinstance(alone, str) and not isinstance(both, str)
    assert alone.simulation.away["host"] == pytest.approx(STATE_BYTES, rel=1e-3)
    resident = plain.trace.resident_bytes - alone.trace.resident_bytes
    assert resident == STATE_BYTES
    for candidate in (alone, both):
        copies = [op for op in candidate.trace.ops if op.name == "copy_" and op.bytes_moved > 3 * 64 * 1024]
        assert len(copies) == 12  # three large parameters, two states each, there and back
        assert candidate.trace.phases[-2][0] == "optimizer" and candidate.simulation.step_s > plain.simulation.step_s


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
@pytest.mark.parametrize("more", [(), ("step-in-backward",)])
def test_states_that_come_and_go_give_the_same_bits(
    kind: str, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way a card goes, on the CPU: nothing but the streams is different."""
    monkeypatch.setattr("memfit.strategies.exact.offload_optimizer.strategy.on_card", lambda _: True)
    plain, job = (job_of(kind, **OPTIMIZERS[kind]) for _ in range(2))
    undo = apply_choices(job, [CHOICE, *(Choice(name) for name in more)])
    for _ in range(3):
        run_step(plain, plain.batch), run_step(job, job.batch)
        assert [is_away(one) for one in states(job)] == [one.nbytes >= 64 * 1024 for one in states(job)]
    undo()
    run_step(plain, plain.batch), run_step(job, job.batch)
    assert all(torch.equal(one, two) and not is_away(two) for one, two in zip(states(plain), states(job), strict=True))
    assert all(torch.equal(one, two) for one, two in zip(plain.model.parameters(), job.model.parameters(), strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
def test_on_a_card_states_are_pinned_on_the_host_and_the_bits_stay() -> None:
    plain, job = (job_of() for _ in range(2))
    for one in (plain, job):
        one.model.to("cuda")
        one.batch = one.batch.to("cuda")
    apply_choices(job, [Choice("offload-optimizer", {"place": "host"})])
    for _ in range(3):
        run_step(plain, plain.batch), run_step(job, job.batch)
    assert all(one.is_pinned() for one in states(job) if one.nbytes >= 64 * 1024)
    assert all(torch.equal(one.cpu(), two.cpu()) for one, two in zip(states(plain), states(job), strict=True))
    assert all(torch.equal(one, two) for one, two in zip(plain.model.parameters(), job.model.parameters(), strict=True))


def test_a_disk_budget_that_is_too_small_is_told_with_the_number() -> None:
    found = Explorer(job_of(), CPU, limits={"disk": STATE_BYTES - 1}).candidate([CHOICE])
    assert isinstance(found, str) and "on disk" in found and "--disk-budget" in found
    explorer = Explorer(job_of(), CPU, limits={"disk": STATE_BYTES})
    seen = explorer.candidate([CHOICE])
    assert not isinstance(seen, str) and seen.simulation.away == {"disk": STATE_BYTES}
    assert seen.simulation.peak.allocated_bytes <= explorer.plain.simulation.peak.allocated_bytes - STATE_BYTES
    again = explorer.candidate([Choice("single-tensor-step")])  # undone: states are in memory again
    assert not isinstance(again, str) and again.simulation.away == {}
    assert again.simulation.peak == explorer.plain.simulation.peak
