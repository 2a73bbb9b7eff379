"""Gains within the time model's error are not counted, clear ones are."""

from __future__ import annotations

import pytest

from memfit.core.device import Device
from memfit.core.strategy import Choice
from memfit.core.trace import Kind, Op, Storage, Trace
from memfit.plan.explore import Candidate
from memfit.plan.trust import trusted_seconds
from memfit.simulate import simulate

CPU = Device("cpu", "cpu", 8 << 30, {"float32": 1e9}, 1e9)


def candidate(*choices: str, **seconds: float) -> Candidate:
    """A step whose phases take the given seconds."""
    ops = tuple(Op("mm", phase, "", int(s * 1e9), 0, 0, "float32") for phase, s in seconds.items())
    storage = Storage(8, "parameters", "before", "", "", (2,), "float32")
    trace = Trace((storage,), tuple((int(Kind.OP), place) for place in range(len(ops))), ops, resident=1)
    return Candidate(tuple(Choice(name) for name in choices), trace, simulate(trace, CPU))


PLAIN = candidate(forward=1.0, backward=2.0, optimizer=0.2)


@pytest.mark.parametrize(("optimizer_s", "counted_s"), [(0.1, 3.1), (0.195, 3.2), (0.3, 3.3)])
def test_only_the_phases_that_change_can_be_off(optimizer_s: float, counted_s: float) -> None:
    other = candidate("fused-step", forward=1.0, backward=2.0, optimizer=optimizer_s)
    assert trusted_seconds([PLAIN, other], CPU) == pytest.approx([3.2, counted_s])


def test_a_small_gain_of_the_whole_step_is_not_counted() -> None:
    slightly, clearly = (candidate("micro-batches", forward=f, backward=2 * f, optimizer=0.2) for f in (0.98, 0.9))
    assert trusted_seconds([PLAIN, slightly], CPU)[1] == pytest.approx(3.2)
    assert trusted_seconds([PLAIN, clearly], CPU)[1] == pytest.approx(2.9)


def test_a_mix_is_not_trusted_further_than_its_parts() -> None:
    one = candidate("fused-step", forward=1.0, backward=2.0, optimizer=0.1)
    both = candidate("fused-step", "micro-batches", forward=0.99, backward=1.98, optimizer=0.1)
    assert trusted_seconds([PLAIN, one, both], CPU) == pytest.approx([3.2, 3.1, 3.1])
