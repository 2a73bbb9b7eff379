"""Workers: events, results, deaths, interruption, and no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from memfit.core.errors import MemfitError, RanOutOfMemory, UsageError
from memfit.launch import can_enforce, find_mimalloc, looks_out_of_memory, run_worker

WORKERS = {
    "echoing": """
        def work(spec):
            print("said by the user's code")
            print("a warning", file=sys.stderr)
            for step in range(spec["steps"]):
                emit("step", step=step, loss=0.5)
            return {"doubled": spec["value"] * 2, "allocator": allocator_here()}
    """,
    "refusing": """
        def work(spec):
            raise UsageError("no such thing", "try another")
    """,
    "crashing": """
        def work(spec):
            raise ValueError("what is this")
    """,
    "hungry": """
        def work(spec):
            limit_growth(50 << 20)
            held = []
            while True:
                held.append(bytearray(5 << 20))
    """,
    "killed": """
        def work(spec):
            emit("step", step=0)
            os.kill(os.getpid(), getattr(signal, spec["signal"]))
    """,
    "saving": """
        def work(spec):
            emit("ready")
            try:
                time.sleep(30)
            except KeyboardInterrupt:
                time.sleep(0.3)
                open(spec["path"], "w").write("saved")
                raise
    """,
    "sleeping": """
        def work(spec):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            emit("pids", pids=[os.getpid(), child.pid])
            time.sleep(60)
    """,
}
HEAD = """
import os, signal, subprocess, sys, time
from memfit.core.errors import UsageError
from memfit.launch import allocator_here, emit, limit_growth, worker_main
"""


@pytest.fixture(autouse=True)
def workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that only this process's `sys.path` finds, as a worker's parent may in a notebook."""
    for name, body in WORKERS.items():
        source = HEAD + textwrap.dedent(body) + "\nif __name__ == '__main__':\n    sys.exit(worker_main(work))\n"
        (tmp_path / f"{name}_worker.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_events_come_as_they_are_told_and_the_result_last(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[dict[str, Any]] = []
    done = run_worker("echoing_worker", {"steps": 3, "value": 21}, on_event=heard.append)
    assert [one["step"] for one in heard if one["kind"] == "step"] == [0, 1, 2]
    assert done.result is not None and done.result["doubled"] == 42
    assert done.returncode == 0 and done.error is None and not done.out_of_memory
    assert "a warning" in done.stderr_tail
    out, err = capfd.readouterr()
    assert out == "" and "said by the user's code" in err and "a warning" in err
    if find_mimalloc():
        assert done.result["allocator"] == "mimalloc"


def test_output_can_be_kept_quiet_and_the_allocator_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    done = run_worker("echoing_worker", {"steps": 0, "value": 1}, settled=False, show_output=False)
    assert done.result is not None and done.result["allocator"] != "mimalloc"
    assert capfd.readouterr() == ("", "")


def test_an_error_of_ours_arrives_as_itself() -> None:
    error = run_worker("refusing_worker", {}).error
    assert isinstance(error, UsageError) and error.message == "no such thing" and error.advice == "try another"


def test_any_other_error_is_internal_and_leaves_its_traceback() -> None:
    done = run_worker("crashing_worker", {}, show_output=False)
    assert done.error is not None and done.error.code == 1 and "what is this" in done.error.message
    assert "Traceback" in done.stderr_tail and not done.out_of_memory


@pytest.mark.skipif(not can_enforce(), reason="this system cannot enforce a limit")
def test_memory_refused_by_the_system_is_told_as_such() -> None:
    done = run_worker("hungry_worker", {}, limited=True)
    assert done.out_of_memory and isinstance(done.error, RanOutOfMemory) and done.returncode == 4


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("name", "limited", "memory"), [("SIGKILL", False, True), ("SIGSEGV", False, False),
                                                         ("SIGSEGV", True, True), ("SIGTERM", True, False)])
def test_a_death_by_signal_is_named_and_judged(name: str, limited: bool, memory: bool) -> None:
    done = run_worker("killed_worker", {"signal": name}, limited=limited)
    assert done.signal == name and done.out_of_memory is memory and len(done.events) == 1
    assert isinstance(done.error, MemfitError)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_is_passed_on_once_and_the_end_waited_for(tmp_path: Path) -> None:
    saved = tmp_path / "saved"

    def on_event(event: dict[str, Any]) -> None:
        if event["kind"] == "ready":
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    done = run_worker("saving_worker", {"path": str(saved)}, on_event=on_event)
    assert saved.read_text() == "saved"
    assert done.interrupted and done.error is not None and done.error.code == 130


def _is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _gone(pids: list[int]) -> bool:
    until = time.monotonic() + 5
    while any(map(_is_running, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(_is_running, pids))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_that_takes_too_long_is_stopped_with_what_it_started() -> None:
    done = run_worker("sleeping_worker", {}, timeout_s=1.5)
    assert done.timed_out and done.took_s < 10 and not done.out_of_memory
    assert done.events and _gone(done.events[0]["pids"])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked")
def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    source = ("import sys; from memfit.launch import run_worker\n"
              "run_worker('sleeping_worker', {}, on_event=lambda e: print(e['pids'][0], flush=True))")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert _is_running(pid)
    parent.kill()
    parent.wait()
    assert _gone([pid])


@pytest.mark.parametrize("text", [
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried",
    "RuntimeError: could not create a primitive", "terminate called after throwing an instance of 'std::bad_alloc'",
    "OSError: [Errno 12] Cannot allocate memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB", "MemoryError"])
def test_messages_of_refused_memory_are_known(text: str) -> None:
    assert looks_out_of_memory(text, 1)


@pytest.mark.parametrize("text", ["RuntimeError: could not create a primitive descriptor for a convolution", "",
                                  "KeyError: 'labels'", "RuntimeError: mat1 and mat2 shapes cannot be multiplied"])
def test_other_messages_are_not(text: str) -> None:
    assert not looks_out_of_memory(text, 1)
