"""The limit bites, and what is measured is what is held."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from memfit.core.units import MIB
from memfit.launch import ResidentSampler, allowance, can_enforce, find_mimalloc, process_memory, settled_environment
from memfit.launch.limits import parse_status

enforced = pytest.mark.skipif(not can_enforce(), reason="this system cannot enforce a limit")


def in_child(source: str, settled: bool = True, exact: bool = False) -> dict[str, object]:
    command = [sys.executable, "-c", textwrap.dedent(source)]
    environment = settled_environment(exact=exact) if settled else None
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


def test_status_is_read_in_bytes() -> None:
    memory = parse_status("Name:\tx\nVmData:\t  20 kB\nRssAnon:\t 4 kB\nRssShmem: 3 kB\nRssFile: 2 kB\nVmHWM: 9 kB\n")
    assert (memory.data_bytes, memory.anonymous_bytes, memory.shared_bytes) == (20480, 4096, 3072)
    assert (memory.file_bytes, memory.peak_resident_bytes, memory.resident_bytes) == (2048, 9216, 7168)


def test_a_process_that_is_gone_has_no_memory() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert process_memory(child.pid) is None


def test_allowance_is_a_tenth_and_64_mib_above() -> None:
    assert allowance(1000 * MIB) == 1164 * MIB
    assert isinstance(allowance(12345), int)


LIMITED = """
    import json
    from memfit.launch import allocator_here, allowance, lift_data_limit, limit_growth
    budget = 200 << 20
    limit_growth(budget)
    held = []
    try:
        while True:
            held.append(bytearray(10 << 20))
    except MemoryError:
        count = len(held)
    lift_data_limit()
    held += [bytearray(10 << 20) for _ in range(20)]
    print(json.dumps({"mib": count * 10, "after": len(held) * 10, "allocator": allocator_here()}))
"""


@enforced
@pytest.mark.parametrize("settled", [True, False])
def test_memory_above_the_limit_is_refused_and_below_it_given(settled: bool) -> None:
    seen = in_child(LIMITED, settled)
    allowed = allowance(200 * MIB) // MIB
    assert 200 <= seen["mib"] <= allowed  # no hidden gigabyte: an eagerly committed arena would hold 1000 more
    assert seen["after"] == seen["mib"] + 200
    if settled and find_mimalloc():
        assert seen["allocator"] == "mimalloc"


CHURN = """
    import json
    from memfit.launch import ResidentSampler
    with ResidentSampler() as sampler:
        sampler.baseline()
        for _ in range(5):  # the same 96 MiB again and again, in blocks that glibc's heap would keep and add to
            held = [b"x" * (size << 20) for size in (1, 2, 5, 8, 16, 24, 40)]
            del held
    print(json.dumps({"growth": sampler.growth_bytes}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("exact", [False, True])
def test_resident_follows_what_is_held(exact: bool) -> None:
    growth = in_child(CHURN, exact=exact)["growth"]
    assert 95 * MIB <= growth <= 1.1 * 96 * MIB + 8 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_sampler_sees_a_peak_that_is_gone_and_counts_from_the_baseline() -> None:
    with ResidentSampler() as sampler:
        sampler.baseline()
        block = b"x" * (64 * MIB)
        peak = sampler.peak_bytes
        del block
        assert sampler.growth_bytes >= 60 * MIB
        assert sampler.peak_bytes >= peak
        sampler.baseline()
        assert sampler.growth_bytes < 30 * MIB
