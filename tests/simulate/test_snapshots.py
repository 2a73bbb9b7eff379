"""Snapshots: files from anyone are read safely, and what is written is what PyTorch's viewer opens."""

from __future__ import annotations

import os
import pickle
import pickletools
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from memfit.core.errors import UsageError
from memfit.core.trace import Storage
from memfit.core.units import MIB
from memfit.simulate.cuda_allocator import CachingAllocator
from memfit.simulate.cuda_blocks import Block
from memfit.simulate.cuda_replay import replay
from memfit.simulate.cuda_settings import AllocatorSettings
from memfit.simulate.cuda_stats import OutOfMemory
from memfit.simulate.plain_pickle import NotPlain, load_plain
from memfit.simulate.snapshot_writer import snapshot_content, storage_origin, write_snapshot
from memfit.simulate.snapshots import PENDING, load_snapshot, parse_snapshot

DATA = Path(__file__).parents[1] / "data"
P009, P022 = DATA / "P009.pickle", DATA / "P022.pickle"
WEIGHTS = Storage(10, "parameters", "forward", "model.fc", "aten::empty", (5, 2), "float32")
HIDDEN = Storage(10, "activations", "forward", "model.fc", "aten::mm", (), "float32")
# The opcodes that the viewer's own reader knows (torch/utils/viz/MemoryViz.js), for protocols 2 to 4.
VIEWER = {"PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
          "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1",
          "TUPLE2", "TUPLE3", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "MEMOIZE", "BINGET", "LONG_BINGET", "BINPUT",
          "LONG_BINPUT", "LIST", "DICT"}


class Bomb:
    """Pickles as a call of os.system."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def busy(settings: AllocatorSettings, capacity: int | None = 200 * MIB) -> CachingAllocator:
    """An allocator after many requests, out of memory among them."""
    numbers, live = random.Random(1), list[Block]()
    allocator = CachingAllocator(settings, capacity, record=True)
    for _ in range(400):
        allocator.now_us += 3
        if live and numbers.random() < 0.45:
            allocator.free(live.pop(numbers.randrange(len(live))))
            continue
        size = numbers.choice([numbers.randrange(1, 4000), numbers.randrange(1, 30 * MIB)])
        try:
            live.append(allocator.malloc(size, numbers.choice([0, 0, 7]), numbers.choice([WEIGHTS, HIDDEN])))
        except OutOfMemory:
            for _ in range(len(live) // 2):
                allocator.free(live.pop())
    allocator.record_stream(live[0], 9)
    allocator.free(live.pop(0))
    return allocator


@pytest.mark.parametrize("path", [P009, P022])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_the_reader_reads_what_pickle_reads(path: Path, protocol: int) -> None:
    content = pickle.loads(path.read_bytes())
    content["more"] = [None, True, False, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), -5, 2**40, -(2**70), 1.5, "ä",
                       "x" * 300]
    assert load_plain(pickle.dumps(content, protocol=protocol)) == content


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_code_is_named_and_never_run(tmp_path: Path, protocol: int) -> None:
    path, mark = tmp_path / "bad.pickle", tmp_path / "mark"
    path.write_bytes(pickle.dumps({"segments": [Bomb(f"touch {mark}")]}, protocol=protocol))
    with pytest.raises(UsageError, match=r"asks to run Python code .*(posix|nt)\.system") as caught:
        load_snapshot(path)
    assert not mark.exists() and "\n" not in caught.value.message and caught.value.code == 2


def test_old_style_code_is_refused_too() -> None:
    for data in (b"cos\nsystem\n(S'true'\ntR.", b"(S'true'\nios\nsystem\n.", b"\x80\x02Pid\n.", b"\x80\x02K\x01Q."):
        with pytest.raises(NotPlain):
            load_plain(data)


def tuple_of_tuples(depth: int) -> bytes:
    """A dict with a key `(t, t)` where t is such a tuple again: hashing it takes 2**depth steps."""
    doubled = b"".join(b"\x94h" + bytes([level]) + b"\x86" for level in range(depth))
    return b"\x80\x04}()" + doubled + b"K\x01u."


def test_files_that_would_take_for_ever() -> None:
    assert len(pickle.loads(tuple_of_tuples(5))) == 1  # a good pickle, only slow when it is deep
    start = time.monotonic()
    for data in (tuple_of_tuples(60), pickle.dumps({index * (2**61 - 1): None for index in range(100)})):
        with pytest.raises(NotPlain, match="key of a dict that is not text"):
            load_plain(data)
    with pytest.raises(NotPlain, match="a segment with"):
        parse_snapshot({"segments": [load_plain(b"\x80\x04" + b"]" * 200_000 + b"a" * 199_999 + b".")]})
    with pytest.raises(NotPlain, match="longer than 0 s"):
        load_plain(b"\x80\x04" + b"]" * 200_000, limit_s=0)
    with pytest.raises(NotPlain, match="too many"):
        load_plain(b"\x80\x04" + b"]" * 1000, max_containers=999)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(("content", "match"), [
    (b"", "cut short"), (b"{}", "opcode 0x7b"), (b"hello", "broken"), (b"\x80\x04", "cut short"),
    (pickle.dumps(5), "no list of segments"), (pickle.dumps({"segments": 5}), "no list of segments"),
    (pickle.dumps({"segments": [{}]}), "a segment with a wrong or missing field .'address'"),
    (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": "x", "size": 1}]]}), "str in place"),
    (pickle.dumps({"segments": [], "device_traces": [[{"action": (1,), "addr": 1, "size": 1}]]}), "not text"),
])
def test_other_files_get_one_line(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "file.pickle"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=match) as caught:
        load_snapshot(path)
    assert "\n" not in caught.value.message and caught.value.advice


def test_missing_and_large_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*No such file"):
        load_snapshot(tmp_path / "none.pickle")
    with pytest.raises(UsageError, match="60492 bytes, more than the 1000"):
        load_snapshot(P009, max_bytes=1000)


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    data = P022.read_bytes()
    for length in range(0, len(data), 301):
        with pytest.raises(NotPlain):
            load_plain(data[:length])


@hypothesis_settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 18_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_files_give_a_result_or_one_line(tmp_path_factory: pytest.TempPathFactory,
                                                 damage: list[tuple[int, int]]) -> None:
    data = bytearray(P022.read_bytes())
    for position, value in damage:
        data[position % len(data)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.pickle"
    path.write_bytes(data)
    try:
        replay(load_snapshot(path, limit_s=5))
    except UsageError as error:
        assert "\n" not in error.message


@pytest.mark.parametrize("settings", [AllocatorSettings(), AllocatorSettings(expandable_segments=True)])
def test_written_snapshots_are_read_back_and_replay(tmp_path: Path, settings: AllocatorSettings) -> None:
    allocator = busy(settings)
    assert allocator.stats.num_ooms > 0 and allocator.stats.num_device_free > 0
    path = tmp_path / "out.pickle"
    write_snapshot(path, allocator, storage_origin)
    snapshot = load_snapshot(path)
    assert snapshot.recorded_settings() == settings and snapshot.devices() == [0]
    assert sum(segment.size for segment in snapshot.segments) == allocator.stats.reserved_bytes
    assert [block.state for segment in snapshot.segments for block in segment.blocks].count(PENDING) == 1
    result = replay(snapshot)
    assert result.difference == "" and result.placed == result.allocations > 200
    assert result.sized == result.segments > 5
    assert result.allocator.stats.peak_allocated_bytes == allocator.stats.peak_allocated_bytes
    assert result.allocator.stats.peak_reserved_bytes == allocator.stats.peak_reserved_bytes


@pytest.mark.parametrize("settings", [AllocatorSettings(), AllocatorSettings(expandable_segments=True)])
def test_the_viewer_can_follow(tmp_path: Path, settings: AllocatorSettings) -> None:
    """What MemoryViz.js does: reads the opcodes, lays out blocks, and undoes the events one by one from the end."""
    path = tmp_path / "out.pickle"
    write_snapshot(path, busy(settings), storage_origin)
    data = path.read_bytes()
    assert data[1] == 4 and {opcode.name for opcode, _, _ in pickletools.genops(data)} <= VIEWER
    content = pickle.loads(data)
    events = content["device_traces"][0]
    categories = {event["category"] for event in events if "category" in event}
    assert categories == {"parameters", "activations", "unknown"}  # the viewer needs the last one beside others
    blocks = {b["address"] for s in content["segments"] for b in s["blocks"] if b["state"] != "inactive"}
    held = sum(segment["total_size"] for segment in content["segments"])
    for event in reversed(events):
        assert {"action", "size", "stream", "time_us", "frames"} <= event.keys()
        if event["action"] == "alloc":
            blocks.remove(event["addr"])
        elif event["action"] == "free_completed":
            blocks.add(event["addr"])
        elif event["action"] in ("segment_alloc", "segment_map"):
            held -= event["size"]
        elif event["action"] in ("segment_free", "segment_unmap"):
            held += event["size"]
        elif event["action"] == "oom":
            assert event["device_free"] >= 0
    assert not blocks and held == 0
    times = [event["time_us"] for event in events]
    assert times == sorted(times)


def test_torch_itself_reads_it() -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    content = snapshot_content(busy(AllocatorSettings()), storage_origin)
    assert "total_reserved" in viewer.segsum(content)  # asserts that every segment's bytes add up
    assert "cudaMalloc" in viewer.trace(content)
    frames = content["device_traces"][0][1]["frames"]
    assert frames[0]["name"] in ("aten::empty [5x2 float32]", "aten::mm [scalar float32]")
    assert frames[0]["filename"] == "model.fc" and frames[1]["name"] == "forward"
