"""A worker that meets its limit is tried once more, with exact allocation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memfit.launch import run_limited

WORKER = '''
import os, sys
from memfit.launch.worker import worker_main

def work(spec):
    if spec["dies"] == "always" or (spec["dies"] == "fast" and not spec.get("exact")):
        raise MemoryError("no more")
    if spec["dies"] == "otherwise":
        raise ValueError("broken")
    threshold = os.environ.get("MALLOC_MMAP_THRESHOLD_")
    return {"exact": bool(spec.get("exact")), "threshold": threshold, "step": spec["step"]}

sys.exit(worker_main(work))
'''


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "limited_worker.py").write_text(WORKER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)

    def start(dies: str, enforce: bool = True) -> tuple[Any, list[str]]:
        heard: list[str] = []
        spec = {"dies": dies, "enforce": enforce, "step": 1}
        result = run_limited("limited_worker", spec, on_event=lambda event: heard.append(event["kind"]),
                             again=lambda: {**spec, "step": 7}, show_output=False)
        return result, heard

    return start


def test_one_that_lives_runs_once(run: Any) -> None:
    result, heard = run("never")
    assert result.result["exact"] is False and result.result["step"] == 1 and heard == ["result"]


def test_one_that_dies_goes_on_with_exact_allocation(run: Any) -> None:
    result, heard = run("fast")
    assert result.error is None and result.result == {"exact": True, "threshold": "1048576", "step": 7}
    assert heard == ["error", "restarted", "result"]


def test_only_refused_memory_under_a_limit_is_tried_again(run: Any) -> None:
    result, heard = run("always")
    assert result.error.code == 4 and heard == ["error", "restarted", "error"]
    assert run("otherwise")[1] == ["error"] and run("always", enforce=False)[1] == ["error"]
