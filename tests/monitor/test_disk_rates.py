"""The disk's rates: measured once, kept, and not there where memory cannot be moved to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memfit.monitor import disk_rates


def test_they_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = disk_rates.disk_here()
    if first is None:
        pytest.skip("temporary files are in memory here")
    assert min(first.read, first.write, first.rewrite) > 1e6 and first.cached_bytes > 0
    (kept,) = (tmp_path / "memfit").glob("disk-*.json")
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "write": 123.0}))
    again = disk_rates.disk_here()
    assert again is not None and again.write == 123.0 and again.read == first.read


def test_there_is_none_where_memory_cannot_be_moved_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_rates, "why_unsuitable", lambda _: "it is tmpfs")
    assert disk_rates.disk_here() is None
