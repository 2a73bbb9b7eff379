"""Steps through the allocator: what is kept, where memory runs out, workspaces, cards of all sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.trace import Kind, Op, Repeat, Storage, Trace
from memfit.core.units import GIB, MIB
from memfit.hardware import find_device
from memfit.hardware.process_memory import overhead_range
from memfit.simulate import simulate
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_prediction import Replays, Setting, predict
from memfit.simulate.cuda_stats import OutOfMemory
from memfit.simulate.cuda_steps import HIGH, LOW, TYPICAL, StepReplay
from memfit.simulate.cuda_workspaces import workspace_bytes

CARD = find_device("rtx3060")
BIRTH, DEATH, OP = Kind.BIRTH, Kind.DEATH, Kind.OP


def storage(mib: float, category: str = "activations") -> Storage:
    return Storage(int(mib * MIB), category, "forward", "layer", "mul", (1,), "float32")


def op(name: str = "mul", phase: str = "forward", **more: object) -> Op:
    return Op(name, phase, "layer", 0, 0, 0, "float32", **more)  # type: ignore[arg-type]


def replacing(keys: tuple[int, int]) -> Trace:
    """A step with a parameter, and a state that it replaces by a new one of another key."""
    events = ((BIRTH, 2), (OP, 0), (DEATH, 1))
    return Trace((storage(8, "parameters"), storage(8, "optimizer_state"), storage(8, "optimizer_state")), events, (op(),), 2,
                 keys={0: 100, 1: keys[0], 2: keys[1]})


def test_what_a_step_leaves_is_there_in_the_next() -> None:
    allocator = CachingAllocator()
    steps = StepReplay(allocator, 0)
    peaks = [steps.run(trace) for trace in (replacing((1, 2)), replacing((2, 1)), replacing((2, 1)))]
    assert [peak.allocated_bytes for peak in peaks] == [24 * MIB] * 3
    assert allocator.stats.allocated_bytes == 16 * MIB and [peak.event for peak in peaks] == [0, 0, 0]


def test_each_thread_that_multiplies_has_a_workspace() -> None:
    ops = (op("mm"), op("mm"), op("mm", "backward", autograd=True), op("mm", "backward", autograd=True))
    trace = Trace((), tuple((OP, index) for index in range(4)), ops, 0)
    allocator = CachingAllocator()
    steps = StepReplay(allocator, 8 * MIB)
    assert [steps.run(trace).allocated_bytes for _ in range(2)] == [16 * MIB] * 2


def test_buffers_of_a_kernel_live_beside_each_other_and_then_go() -> None:
    trace = Trace((storage(2),), ((BIRTH, 0), (OP, 0)), (op(buffers=(3 * MIB, 5 * MIB), ),), 0)
    trace = replace(trace, ops=(replace(trace.ops[0], scratch_bytes=8 * MIB),))
    allocator = CachingAllocator()
    assert StepReplay(allocator, 0).run(trace).allocated_bytes == 10 * MIB
    assert allocator.stats.allocated_bytes == 2 * MIB


@pytest.mark.parametrize(("end", "capacity", "seen"), [
    (LOW, None, 1), (TYPICAL, None, 40), (HIGH, None, 90), (HIGH, 64, 40), (TYPICAL, 24, 1)])
def test_a_workspace_shrinks_where_memory_is_short(end: int, capacity: int | None, seen: int) -> None:
    elastic = op("convolution", workspace=(MIB, 40 * MIB, 90 * MIB))
    trace = Trace((), ((OP, 0),), (elastic,), 0)
    allocator = CachingAllocator(None, capacity and capacity * MIB)
    assert StepReplay(allocator, 0, end).run(trace).allocated_bytes == seen * MIB


def test_a_window_of_equal_parts_is_played_more_than_once() -> None:
    """The second pass makes a running total anew while the first one's is still there."""
    trace = Trace((storage(4), storage(2)), ((BIRTH, 0), (BIRTH, 1), (OP, 0), (DEATH, 1)), (op(),), 0,
                  repeats=(Repeat(0, 4, 8),))
    allocator = CachingAllocator()
    assert StepReplay(allocator, 0).run(trace).allocated_bytes == 8 * MIB
    assert allocator.stats.allocated_bytes == 4 * MIB


def large(gib: float) -> Trace:
    return Trace((storage(64, "parameters"), storage(gib * 1024)), ((BIRTH, 1), (OP, 0), (DEATH, 1)),
                 (op("matmul_of_all", "backward"),), 1, (("forward", 0),), keys={0: 1})


def test_running_out_says_where() -> None:
    seen = simulate(large(16), CARD, first=large(1))
    assert seen.fits is False and seen.peak.allocated_bytes == 16 * GIB + 64 * MIB
    note = next(note for note in seen.notes if "runs out" in note)
    assert "rtx3060" in note and "a later step" in note and "layer, matmul_of_all" in note and "16384 MiB" in note
    assert "in a step" in next(note for note in simulate(large(16), CARD).notes if "runs out" in note)


def test_the_interval_holds_the_prediction_and_stays_within_a_card_that_is_enough() -> None:
    for gib in (1.0, 8.0, 10.5, 20.0):
        peak = simulate(large(gib), CARD).peak
        assert peak.allocated_low_bytes <= peak.allocated_bytes <= peak.allocated_high_bytes
        assert peak.reserved_low_bytes <= peak.reserved_bytes <= peak.reserved_high_bytes
        assert peak.low_bytes <= peak.process_bytes <= peak.high_bytes
        assert (peak.high_bytes <= CARD.capacity_bytes) == bool(simulate(large(gib), CARD).fits)
        assert peak.process_bytes - peak.reserved_bytes == overhead_range(CARD).typical_bytes


def test_settings_change_the_prediction() -> None:
    """Segments that grow by pages leave no hole where blocks of two sizes take turns."""
    born = [[(BIRTH, index), (OP, 0)] for index in range(40)]
    events = tuple(event for index in range(40) for event in [*born[index], (DEATH, index)][: 2 + index % 2])
    trace = Trace(tuple(storage(11 + index % 3) for index in range(40)), events, (op(),), 0)
    plain = predict([trace], Setting(CARD, {})).peak
    paged = predict([trace], Setting(CARD, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})).peak
    assert plain.allocated_bytes >= paged.allocated_bytes and plain.reserved_bytes >= paged.reserved_bytes
    limited = {"PYTORCH_ALLOC_CONF": "per_process_memory_fraction:0.02"}
    assert predict([trace], Setting(CARD, limited)).ran_out is not None


@pytest.mark.parametrize(("environment", "said"), [
    ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:x"}, "PYTORCH_CUDA_ALLOC_CONF"),
    ({"CUBLAS_WORKSPACE_CONFIG": ":4096"}, "CUBLAS_WORKSPACE_CONFIG"),
    ({"CUBLAS_WORKSPACE_CONFIG": "4096:8"}, "CUBLAS_WORKSPACE_CONFIG"),
])
def test_settings_that_do_not_parse(environment: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        predict([large(1)], Setting(CARD, environment))


def test_workspaces_by_card_and_setting() -> None:
    assert workspace_bytes(CARD, {}) == 8_519_680
    assert workspace_bytes(find_device("h200"), {}) == 32 * MIB
    assert workspace_bytes(CARD, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8:16:2"}) == (4096 * 8 + 16 * 2) * 1024


def test_a_card_that_does_not_hold_its_context() -> None:
    with pytest.raises(UsageError, match="holds 100 MiB"):
        simulate(large(0.01), replace(CARD, capacity_bytes=100 * MIB))


def test_replays_are_shared_between_cards() -> None:
    """A card that is large enough sees what a card without an end sees; a small one is replayed on its own."""
    trace = large(9)
    replays = Replays([trace])
    alone: dict[str, object] = {}
    for name in ("rtx3060", "rtx3090", "rtx3060-8gb", "a100-80gb"):
        device: Device = find_device(name)
        shared, own = simulate(trace, device, replays=replays), simulate(trace, device)
        assert (shared.peak, shared.fits, shared.notes) == (own.peak, own.fits, own.notes)
        alone[name] = shared.fits
    assert alone == {"rtx3060": True, "rtx3090": True, "rtx3060-8gb": False, "a100-80gb": True}


def test_out_of_memory_in_a_step_leaves_the_event() -> None:
    steps = StepReplay(CachingAllocator(None, 512 * MIB), 0)
    with pytest.raises(OutOfMemory):
        steps.run(large(1))
    assert steps.event == 0
