"""Environments with another version of one package, beside all that this Python has: made once, kept in a cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("MEMFIT_BENCH_CACHE", "~/.cache/memfit-bench")).expanduser()


def beside_this_python(package: str, version: str, *, no_deps: bool = False) -> str:
    """The Python that has this version of a package (""  for this Python's own); `no_deps`: what that version needs is
    taken from this Python, too."""
    if not version:
        return sys.executable
    folder = CACHE / f"{package}-{version}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", f"{package}=={version}"]
        subprocess.run([*install, *(["--no-deps"] if no_deps else [])], check=True)
        packages = next((folder / "lib").glob("python3*/site-packages"))
        here = next(path for path in sys.path if path.endswith("site-packages"))
        (packages / "zz_here.pth").write_text(here + "\n")  # sought last: the environment's own packages go first
    return str(python)
