"""What `memfit init` writes: a commented TARGET file that works as it is (`memfit train train_job.py:job`)."""

from __future__ import annotations

from pathlib import Path

TEMPLATE = Path(__file__).with_name("train_job.py.txt").read_text(encoding="utf-8")
