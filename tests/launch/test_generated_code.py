"""Generated code made read-only is no data any more, still runs, and can be given back."""

from __future__ import annotations

import ctypes
import mmap
import sys

import pytest

from memfit.launch import GeneratedCode, process_memory
from memfit.launch.generated_code import _writable_code, without

MIB = 2**20
RETURN_7 = b"\xb8\x07\x00\x00\x00\xc3"  # mov eax, 7; ret


def code() -> mmap.mmap:
    return mmap.mmap(-1, 8 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                     prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)


def address(made: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(made))


def writable(made: mmap.mmap) -> bool:
    return any(start <= address(made) < stop for start, stop in _writable_code())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="maps are read from /proc")
def test_only_new_code_becomes_read_only_and_stops_counting_as_data() -> None:
    old = code()
    generated = GeneratedCode()
    new = code()
    new[: len(RETURN_7)] = RETURN_7
    before = process_memory()
    changed = generated.make_read_only()
    after = process_memory()
    assert before is not None and after is not None
    assert changed >= 8 * MIB and before.data_bytes - after.data_bytes >= 8 * MIB
    assert writable(old) and not writable(new)
    if sys.maxsize > 2**32 and "x86" in __import__("platform").machine():
        assert ctypes.CFUNCTYPE(ctypes.c_int)(address(new))() == 7


@pytest.mark.parametrize(("parts", "left"), [
    ([], [(10, 50)]), ([(0, 10), (50, 60)], [(10, 50)]), ([(20, 30)], [(10, 20), (30, 50)]), ([(0, 20), (40, 90)], [(20, 40)]),
    ([(0, 90)], [])])
def test_ranges_without_others(parts: list[tuple[int, int]], left: list[tuple[int, int]]) -> None:
    assert list(without((10, 50), parts)) == left
