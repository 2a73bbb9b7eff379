"""`memfit exec`: any program, as if it had been started without us, but for the allocator."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from memfit.core.errors import UsageError
from memfit.core.units import MIB
from memfit.launch import find_mimalloc, run_exec, settled_environment

CHURN = "held = [b'x' * (size << 20) for size in (1, 2, 5, 8, 16, 24, 40)]; del held"


@pytest.mark.parametrize(("source", "code"), [("pass", 0), ("raise SystemExit(7)", 7), ("1 / 0", 1)])
def test_the_exit_code_is_the_childs(source: str, code: int) -> None:
    assert run_exec([sys.executable, "-c", source])[0] == code


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_a_death_by_signal_is_128_and_its_number(name: str) -> None:
    number = getattr(signal, name)
    code, document = run_exec([sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})"])
    assert code == document["returncode"] == 128 + number


def test_the_document_tells_what_was_run_and_how_large_it_was() -> None:
    code, document = run_exec([sys.executable, "-c", f"import time; {CHURN}; time.sleep(0.1)"])
    assert code == 0 and document["schema"] == "memfit.exec/1"
    assert set(document) == {"schema", "command", "returncode", "allocator", "peak_rss_bytes", "took_s", "notes"}
    assert document["command"][0] == sys.executable and document["took_s"] > 0
    if sys.platform == "linux":
        assert 96 * MIB < document["peak_rss_bytes"] < 200 * MIB
    if find_mimalloc():
        assert document["allocator"] == "mimalloc" and document["notes"] == []


def test_stdout_is_the_childs_own_and_with_json_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    say = [sys.executable, "-c", "print('hello')"]
    run_exec(say)
    assert capfd.readouterr().out == "hello\n"
    run_exec(say, json=True)
    assert capfd.readouterr() == ("", "hello\n")


@pytest.mark.parametrize("argv", [[], ["no-such-program-here"], ["/"]])
def test_a_program_that_is_not_there_is_bad_usage(argv: list[str]) -> None:
    with pytest.raises(UsageError):
        run_exec(argv)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_stop_reaches_the_child_which_decides_its_exit_code() -> None:
    child = ("import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); "
             "print('ready', flush=True); time.sleep(30)")
    source = f"import sys; from memfit.launch import run_exec; sys.exit(run_exec([sys.executable, '-c', {child!r}])[0])"
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(timeout=10) == 9


def test_what_the_user_has_settled_stays() -> None:
    base = {"MIMALLOC_PURGE_DELAY": "10", "MALLOC_MMAP_THRESHOLD_": "5", "LD_PRELOAD": "/opt/libother.so"}
    environment = settled_environment(base)
    assert environment["MIMALLOC_PURGE_DELAY"] == "10" and environment["MALLOC_MMAP_THRESHOLD_"] == "5"
    library = find_mimalloc()
    if library:
        assert environment["LD_PRELOAD"].split(":") == [str(library), "/opt/libother.so"]
        again = settled_environment(environment)
        assert again["LD_PRELOAD"] == environment["LD_PRELOAD"]


def test_without_the_wheel_the_threshold_is_fixed_and_a_note_says_how_to_do_better(
        monkeypatch: pytest.MonkeyPatch) -> None:
    from memfit.launch import allocator

    monkeypatch.setattr(allocator, "find_mimalloc", lambda: None)
    monkeypatch.setattr(sys, "platform", "linux")
    environment = allocator.settled_environment({})
    assert environment == {"MALLOC_MMAP_THRESHOLD_": "1048576", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    assert "memfit[cpu]" in allocator.settling_note()
