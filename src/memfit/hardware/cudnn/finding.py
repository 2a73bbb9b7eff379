"""Which cuDNN is installed, and which one a version of PyTorch brings."""

from __future__ import annotations

import ctypes.util
import os
import re
import sys
from functools import lru_cache
from importlib import metadata
from pathlib import Path

OWN_LIBRARY = "MEMFIT_CUDNN"
_NAME = "libcudnn.so.9"
# PyPI metadata of the CUDA wheels of torch (requires-dist of nvidia-cudnn-cu12 or -cu13), Linux x86-64.
_OF_TORCH = {(2, 3): 80902, (2, 4): 90100, (2, 5): 90100, (2, 6): 90100, (2, 7): 90501, (2, 8): 91002, (2, 9): 91002,
             (2, 10): 91002, (2, 11): 91900, (2, 12): 92000, (2, 14): 92400}
_PACKAGES = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")


def library_path() -> Path | None:
    """The cuDNN that the CUDA wheels of torch bring; one that MEMFIT_CUDNN names (empty: none) goes before it."""
    own = os.environ.get(OWN_LIBRARY)
    if own is not None:
        return Path(own) if own else None
    for root in _package_roots():
        path = root / "cudnn" / "lib" / _NAME
        if path.is_file():
            return path
    found = ctypes.util.find_library("cudnn")
    return Path(found) if found else None


def library_folders() -> list[Path]:
    """Where the libraries lie that a cuDNN may load (cuBLAS, the run-time compiler)."""
    return [folder for root in _package_roots() for folder in sorted(root.glob("*/lib"))]


@lru_cache(maxsize=1)
def installed_version() -> int | None:
    """The installed package's version as cuDNN writes it (9.24.0: 92400), read without loading it."""
    for package in _PACKAGES:
        try:
            return version_number(metadata.version(package))
        except metadata.PackageNotFoundError:
            continue
    return None


def version_of_torch(torch_version: str) -> int | None:
    """What the CUDA wheel of a PyTorch (`2.6.0+cu124`) comes with; None where that is not known."""
    found = re.match(r"(\d+)\.(\d+)", torch_version)
    return _OF_TORCH.get((int(found[1]), int(found[2]))) if found else None


def version_number(text: str) -> int | None:
    """`9.10.2.21` as 91002."""
    parts = [int(part) for part in re.findall(r"\d+", text)[:3]]
    return parts[0] * 10000 + parts[1] * 100 + parts[2] if len(parts) == 3 else None


def version_text(version: int) -> str:
    """91002 as `9.10.2`."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _package_roots() -> list[Path]:
    """The `nvidia` folders of the places that Python imports from."""
    folders = [Path(entry or ".") / "nvidia" for entry in sys.path]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]
