"""Seconds of operator calls from measured ones, and of a step by where in the caches its tensors are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memfit.core.costs import costs
from memfit.core.device import Device
from memfit.core.trace import Kind, Op, Storage, Trace
from memfit.simulate import again_seconds, op_seconds, phase_seconds, step_seconds

MIB = 2**20
DEVICE = Device("cpu", "cpu", 8 << 30, {"float32": 1e11}, 1e10, overhead_s=2e-6)
TABLE = costs(
    {"mul:float32": [(0, 1e4, 1e-6), (0, 1e6, 1e-4)], "mm:float32": [(1e6, 1e5, 1e-4), (1e9, 1e7, 1e-2)]},
    {"forward": 5e-6, "backward": 7e-6, "hooked": 1e-5, "again": 2e-5}, [(1e6, 4e10), (1e8, 1e10)])
MEASURED = replace(DEVICE, costs=TABLE)


def op(name: str, flops: int, nbytes: int, phase: str = "forward", reads: tuple[int, ...] = ()) -> Op:
    return Op(name, phase, "", flops, nbytes, 0, "float32", False, reads)


def test_between_sizes_seconds_follow_a_power_law_and_beyond_them_the_rate_stays() -> None:
    assert TABLE.seconds("mul", "float32", 0, 100_000) == pytest.approx(1e-5)
    assert TABLE.seconds("mul", "float32", 0, 10**7) == pytest.approx(1e-3)
    assert TABLE.seconds("mul", "float32", 0, 10) == pytest.approx(1e-6)
    assert TABLE.seconds("mm", "float32", 10**9, 10**7) == pytest.approx(1e-2, rel=0.01)
    assert 1e-3 < (TABLE.seconds("mm", "float32", 10**8, 10**6) or 0) < 1e-2


def test_in_place_and_other_dtypes_fall_back_and_unknown_operators_say_so() -> None:
    assert TABLE.seconds("mul_", "float32", 0, 10_000) == TABLE.seconds("mul", "bfloat16", 0, 10_000) == pytest.approx(1e-6)
    assert TABLE.seconds("erfinv", "float32", 0, 10_000) is None


def test_without_measured_calls_an_operator_takes_its_arithmetic_or_its_traffic() -> None:
    assert op_seconds(op("mm", 10**9, 10), DEVICE) == pytest.approx(2e-6 + 1e-2)
    assert op_seconds(op("add", 0, 10**8), DEVICE) == pytest.approx(2e-6 + 1e-2)


def test_running_again_costs_the_host_more() -> None:
    one = op("mul", 0, 10_000)
    assert again_seconds(one, MEASURED) - op_seconds(one, MEASURED) == pytest.approx(1.5e-5)


def two_uses(between: int) -> Trace:
    """A storage is used, `between` bytes are touched, and it is used again."""
    storages = tuple(Storage(n, "activations", "forward", "", "", (), "float32") for n in (MIB, between))
    ops = (op("mul", 0, MIB, reads=(0,)), op("mul", 0, between, reads=(1,)), op("mul", 0, MIB, "backward", reads=(0,)))
    return Trace(storages, tuple((int(Kind.OP), place) for place in range(3)), ops, resident=2)


def test_a_tensor_that_was_used_long_ago_is_read_from_memory() -> None:
    near, far = (phase_seconds(two_uses(size), MEASURED)["backward"] for size in (MIB, 500 * MIB))
    assert far > 1.1 * near
    assert phase_seconds(two_uses(MIB), DEVICE)["backward"] == phase_seconds(two_uses(500 * MIB), DEVICE)["backward"]


def test_a_hook_is_paid_for_by_every_operator_of_forward() -> None:
    trace = two_uses(MIB)
    assert step_seconds(trace, MEASURED, hooked=True) - step_seconds(trace, MEASURED) == pytest.approx(2e-5)


def test_memory_that_nobody_writes_takes_no_time() -> None:
    assert op_seconds(op("empty_like", 0, 10**9), MEASURED) == pytest.approx(5e-6)
