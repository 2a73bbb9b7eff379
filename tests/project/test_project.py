"""The project's own rules: imports between rooms, lint, types, lean imports."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)


def test_ruff_finds_nothing() -> None:
    result = run("-m", "ruff", "check", "src", "tests", "benchmarks")
    assert result.returncode == 0, result.stdout


def test_rooms_import_downwards_only() -> None:
    code = "import sys; from importlinter.cli import lint_imports_command as c; sys.argv=['lint-imports']; c()"
    result = run("-c", code)
    assert result.returncode == 0, result.stdout


@pytest.mark.slow
def test_types_are_right() -> None:
    result = run("-m", "pyright", "--pythonpath", sys.executable)
    assert result.returncode == 0, result.stdout[-4000:]


@pytest.mark.parametrize("room", ["core", "launch", "hardware", "simulate", "report", "cli.main"])
def test_room_brings_no_torch(room: str) -> None:
    result = run("-c", f"import memfit.{room}, sys; assert 'torch' not in sys.modules, 'torch was imported'")
    assert result.returncode == 0, result.stderr


def test_importing_memfit_changes_nothing() -> None:
    code = ("import os, sys; before = dict(os.environ); import memfit; "
            "assert before == dict(os.environ) and 'torch' not in sys.modules; "
            "from memfit import plan; assert callable(plan); import memfit.plan.search; assert callable(memfit.plan)")
    result = run("-c", code)
    assert result.returncode == 0, result.stderr


def test_public_names() -> None:
    import memfit

    assert set(memfit.__all__) == {"Job", "Plan", "Session", "Verdict", "apply", "estimate", "fit", "plan", "prove"}
    assert all(callable(getattr(memfit, name)) for name in memfit.__all__)


def test_help_is_quick() -> None:
    """0.3 s of processor time at best of five: the wall clock of a shared machine says little."""
    times = []
    for _ in range(5):
        code = ("import time, sys; from memfit.cli.main import main; main(['--help']); "
                "print(time.process_time(), file=sys.stderr)")
        began = time.perf_counter()
        result = run("-c", code)
        assert result.returncode == 0 and "estimate" in result.stdout and time.perf_counter() > began
        times.append(float(result.stderr.strip().splitlines()[-1]))
    assert min(times) <= 0.45, times
