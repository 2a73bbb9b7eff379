"""What only a process of its own shows: `python -m memfit`, pipes, terminals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_contract import target


def test_errors_leave_python_m_memfit_with_their_code() -> None:
    words = [sys.executable, "-m", "memfit", "plan", "no-such-recipe", "--json"]
    ended = subprocess.run(words, capture_output=True, text=True)
    assert ended.returncode == 2 and json.loads(ended.stdout)["code"] == 2
    assert ended.stderr.count("\n") == 1


def test_usage_errors_need_no_torch() -> None:
    code = ("import sys; from memfit.cli.main import main; "
            "lines = ['--help', 'plan --help', 'bogus', 'plan x --budget 8G']; "
            "codes = [main(line.split()) for line in lines]; "
            "assert codes == [0, 0, 2, 2], codes; assert 'torch' not in sys.modules")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    """`memfit devices | head -1`: no traceback, no complaint at the end."""
    command = f"'{sys.executable}' -m memfit devices --json; echo code $? >&2"
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == "code 0\n"
    process.wait()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
def test_progress_shows_on_a_terminal_only(tmp_path: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "memfit", "train", target("epochs"), "--budget", "1GiB", "--steps", "3", "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=theirs, cwd=tmp_path, text=True)
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 1 << 16)
        except OSError:  # the last one to hold the other end has closed it
            break
        if not more:
            break
        shown += more
    assert process.stdout is not None
    assert json.loads(process.stdout.read())["steps"] == 3
    assert process.wait() == 0
    assert b"planning" in shown and b"3/3" in shown
