"""Chrome traces: counters that add up, in order of time, as JSON that the viewers read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memfit.core.errors import UsageError
from memfit.core.trace import CATEGORIES, Kind, Op, Storage, Trace
from memfit.core.units import MIB
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.perfetto import allocator_samples, category_samples, chrome_trace, phase_slices, write_chrome_trace


def storage(nbytes: int, category: str) -> Storage:
    return Storage(nbytes, category, "forward", "", "aten::mm", (), "float32")


def step() -> Trace:
    """A parameter; forward makes an activation, with scratch; backward makes a gradient and drops the activation."""
    storages = (storage(100, "parameters"), storage(30, "activations"), storage(100, "gradients"))
    ops = (Op("aten::mm", "forward", "", 1, 1, 7, "float32"), Op("aten::mm", "backward", "", 1, 1, 0, "float32"))
    events = ((Kind.BIRTH, 1), (Kind.OP, 0), (Kind.BIRTH, 2), (Kind.OP, 1), (Kind.DEATH, 1))
    return Trace(storages, events, ops, 1, (("forward", 0), ("backward", 2)))


def test_categories_add_up() -> None:
    samples = list(category_samples(step()))
    assert [time for time, _ in samples] == [0, 1, 2, 2, 3, 5]
    assert [sum(values.values()) for _, values in samples] == [100, 130, 137, 130, 230, 200]
    assert all(set(values) == set(CATEGORIES) for _, values in samples)
    assert samples[2][1]["workspace"] == 7 and samples[-1][1]["activations"] == 0


def test_phases_cover_the_step() -> None:
    assert phase_slices(step()) == [("forward", 0, 2), ("backward", 2, 3)]
    assert phase_slices(step(), [10, 20, 30, 40, 60]) == [("forward", 0, 20), ("backward", 20, 40)]


def test_the_file(tmp_path: Path) -> None:
    trace, path = step(), tmp_path / "deep" / "trace.json"
    write_chrome_trace(path, chrome_trace({"memory": category_samples(trace)}, phase_slices(trace), [("mm", 0.0, 1.0)]))
    content = json.loads(path.read_text())
    events = content["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "C", "X"}
    counters = [event for event in events if event["ph"] == "C"]
    assert len(counters) == 6 and all(isinstance(v, int) for event in counters for v in event["args"].values())
    assert [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"] == [
        ("forward", 0, 2), ("backward", 2, 3), ("mm", 0, 1)]


def test_an_allocators_log() -> None:
    allocator = CachingAllocator(record=True)
    block = allocator.malloc(3 * MIB)
    allocator.now_us = 5
    allocator.free(block)
    allocator.empty_cache()
    assert list(allocator_samples(allocator.log or [])) == [
        (0, {"requested": 0, "reserved": 20 * MIB}), (0, {"requested": 3 * MIB, "reserved": 20 * MIB}),
        (5, {"requested": 0, "reserved": 20 * MIB}), (5, {"requested": 0, "reserved": 0})]


def test_time_goes_on() -> None:
    with pytest.raises(UsageError, match="'memory' goes back in time, from 2 to 1 us"):
        chrome_trace({"memory": [(2.0, {"a": 1}), (1.0, {"a": 1})]})
