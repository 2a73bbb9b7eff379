"""The process that trains: under a real limit, and with targets that go wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memfit.core.units import MIB
from memfit.launch import WorkerResult, can_enforce, run_worker

TARGETS = Path(__file__).with_name("train_targets.py")
BLOCKS = [{"name": "checkpoint", "settings": {"modules": [str(number) for number in range(12)]}}]


def run(target: str, **spec: Any) -> WorkerResult:
    return run_worker("memfit.train.worker", {"target": f"{TARGETS}:{target}", "steps": 2, **spec},
                      limited=bool(spec.get("enforce")), show_output=False)


@pytest.mark.slow
@pytest.mark.skipif(not can_enforce(), reason="no limit can be enforced here")
def test_plain_dies_at_plus_600_mb_and_checkpointing_survives() -> None:
    limit = {"enforce": True, "budget_bytes": int((600e6 - 64 * MIB) / 1.1)}
    died = run("deep", **limit)
    assert died.out_of_memory and died.error is not None and died.error.code == 4
    assert "out of memory in step 1" in died.error.message and "budget" in died.error.advice
    lived = run("deep", **limit, choices=BLOCKS)
    assert lived.error is None and lived.result is not None
    report = lived.result["run"]
    assert report["enforced"] and report["within_budget"] and report["rss_peak_bytes"] < 600e6
    assert 100 * MIB < report["peak_bytes"] < 300 * MIB


@pytest.mark.slow
@pytest.mark.skipif(not can_enforce(), reason="no limit can be enforced here")
def test_resuming_needs_no_more_memory_than_the_run(tmp_path: Path) -> None:
    # parameters 32 MiB, states 64, gradients 32, the optimizer's own 32
    spec = {"settings": {"batch": 8, "width": 512, "hidden": 2048, "layers": 4}, "enforce": True,
            "budget_bytes": 180 * MIB, "out": str(tmp_path)}
    first = run("deep", **spec, steps=2)
    assert first.error is None
    again = run("deep", **spec, steps=4, resume=str(tmp_path))
    assert again.error is None and first.result is not None and again.result is not None
    grew = again.result["run"]["rss_peak_bytes"] - first.result["run"]["rss_peak_bytes"]
    assert again.result["run"]["steps"] == 4 and grew < 16 * MIB


@pytest.mark.slow
@pytest.mark.parametrize(("target", "words"), [
    ("vector_loss", "shape [2, 4], not a scalar"), ("no_graph", "has no graph"),
    ("raising_loss", "KeyError: 'no such column'")])
def test_bad_losses_end_with_one_line_and_code_2(target: str, words: str) -> None:
    result = run(target)
    assert result.returncode == 2 and result.error is not None
    assert words in result.error.message and "\n" not in result.error.message and result.error.advice
    assert "Traceback" not in result.stderr_tail


def test_a_run_reports_steps_and_its_result(tmp_path: Path) -> None:
    result = run("small", epochs=1, steps=None, out=str(tmp_path))
    assert result.error is None and result.result is not None
    kinds = [event["kind"] for event in result.events]
    assert kinds[:2] == ["warm", "ready"] and kinds.count("step") == 6 and kinds[-2:] == ["saved", "result"]
    report = result.result["run"]
    assert report["schema"] == "memfit.run/1" and report["steps"] == 6 and report["peak_bytes"] > 0
    assert report["loss_last"] == json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-2])["loss"]
