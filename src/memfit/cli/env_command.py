"""`memfit env`: facts for a bug report. Nothing heavy is imported for it."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from memfit import __version__
from memfit.core.results import plain
from memfit.hardware import capacity_host_bytes, cards_here, container_limit_bytes, free_host_bytes
from memfit.hardware.processor import processor
from memfit.launch import allocator_here, can_enforce, find_mimalloc, settling_note
from memfit.report.terminal import to_text

PACKAGES = ("torch", "torchvision", "transformers", "accelerate", "lightning", "torchao", "bitsandbytes", "peft",
            "scikit-learn", "numpy", "cmeel-mimalloc", "nvidia-ml-py")


def run() -> tuple[int, dict[str, Any], str]:
    """(exit code, `memfit.env/1`, text)."""
    facts = document()
    return 0, facts, to_text(facts)


def document() -> dict[str, Any]:
    """`memfit.env/1`. A package that is not installed is null; `container_limit_bytes` is null where there is none."""
    here = processor()
    return {
        "schema": "memfit.env/1", "memfit": __version__, "python": platform.python_version(),
        "executable": sys.executable, "platform": platform.platform(), "cpu": here.name, "cores": here.cores,
        "threads": here.threads, "memory_total_bytes": capacity_host_bytes(), "memory_free_bytes": free_host_bytes(),
        "container_limit_bytes": container_limit_bytes(), "enforces_limits": can_enforce(),
        "allocator": allocator_here(), "worker_allocator": _worker_allocator(),
        "torch": version("torch"), "torch_cuda": torch_cuda(),
        "cards": [{key: value for key, value in plain(card).items() if key != "uuid"} for card in cards_here()],
        "packages": {name: version(name) for name in PACKAGES},
        "notes": [note for note in (settling_note(),) if note]}


def version(distribution: str) -> str | None:
    """The installed version, read from its metadata; null where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def torch_cuda() -> str | None:
    """The CUDA version that the installed PyTorch was built for; null for a build without, and where none is."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = Path(found.origin).with_name("version.py").read_text()
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([0-9.]+)['\"]", text, re.MULTILINE)
    return match[1] if match else None


def _worker_allocator() -> str:
    if find_mimalloc() is not None:
        return "mimalloc"
    return "glibc, large blocks mapped one by one" if sys.platform == "linux" else "the system's"
