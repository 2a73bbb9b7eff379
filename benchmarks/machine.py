"""What a results file says of where its numbers come from."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from memfit.hardware.processor import processor
from memfit.launch import find_mimalloc

_PACKAGES = ("torch", "torchvision", "transformers", "cmeel-mimalloc")


def heading(title: str, command: str) -> list[str]:
    """Markdown: a title, and the hardware, versions and command of the run."""
    versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    system = f"Linux {platform.release()}, {' '.join(platform.libc_ver())}"
    mimalloc = "found" if find_mimalloc() else "not installed"
    return [f"# {title}", "", f"- hardware: {processor().name}, {os.cpu_count()} logical CPUs, {_memory_gib():.0f} GiB",
            f"- versions: Python {platform.python_version()}, {versions}, {system}; mimalloc {mimalloc}",
            f"- command: `{command}`", ""]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _memory_gib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) / 2**20
    return 0.0
