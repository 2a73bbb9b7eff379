"""Memory that is away: how much at most, and what moving it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memfit.core.device import Device, Disk
from memfit.core.trace import Kind, Op, Storage, Trace
from memfit.simulate import phase_seconds, simulate
from memfit.simulate.away import away_peaks

GB = 10**9
PLAIN = Device("cpu", "cpu", 1 << 40, {}, 1e10)
DISK = replace(PLAIN, disk=Disk(read=1e9, write=0.5e9, rewrite=4e9, cached_bytes=2 * GB))


def trace_of(place: str, nbytes: int) -> Trace:
    """A value goes out in forward (twice over the same storage) and comes back in backward."""
    here = Storage(nbytes, "activations", "forward", "", "", (), "float32")
    away = Storage(0, "activations", "forward", "", "", (), "float32", place, nbytes)
    ops = (Op("copy_", "forward", "", 0, 0, 0, "float32", reads=(1, 0), writes=(1,)),
           Op("copy_", "forward", "", 0, 0, 0, "float32", reads=(1, 0), writes=(1,)),
           Op("copy_", "backward", "", 0, 0, 0, "float32", reads=(0, 1), writes=(0,)))
    events = ((Kind.BIRTH, 1), (Kind.OP, 0), (Kind.OP, 1), (Kind.OP, 2), (Kind.DEATH, 1))
    return Trace((here, away), tuple((int(kind), index) for kind, index in events), ops, 1,
                 (("forward", 0), ("backward", 3)))


def test_it_is_counted_where_it_is() -> None:
    seen = simulate(trace_of("disk", GB), PLAIN)
    assert seen.peak.allocated_bytes == GB and seen.away == {"disk": GB} == away_peaks(trace_of("disk", GB))


def test_beyond_what_the_system_holds_each_storage_crosses_once_a_phase_and_direction() -> None:
    phases = phase_seconds(trace_of("disk", 4 * GB), DISK)
    assert phases["forward"] == pytest.approx(8.0) and phases["backward"] == pytest.approx(4.0)


def test_what_the_system_holds_costs_what_was_written_back_meanwhile() -> None:
    slow = replace(DISK, overhead_s=1.0)  # a step of three seconds, a tenth of the time after which pages are written back
    phases, nothing = (phase_seconds(trace_of(place, GB), slow) for place in ("disk", ""))
    assert phases["forward"] - nothing["forward"] == pytest.approx(0.1 * GB / 4e9)
    assert phases["backward"] == nothing["backward"]


def test_a_cards_link_works_beside_its_kernels() -> None:
    card = replace(PLAIN, link=1e9)
    assert phase_seconds(trace_of("host", GB), card) == pytest.approx({"forward": 1.0, "backward": 1.0})
    busy = replace(card, overhead_s=3.0)
    assert phase_seconds(trace_of("host", GB), busy) == pytest.approx({"forward": 6.0, "backward": 3.0})
