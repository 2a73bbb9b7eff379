"""Running commands in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_contract import Ended, Run

from memfit.cli.main import main


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`run("plan", target("job"))`, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> Ended:
        capfd.readouterr()
        code = main(words)
        return Ended(code, *capfd.readouterr())

    return command
