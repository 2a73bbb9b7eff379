"""Asking the installed cuDNN, in a child process, with answers kept in memory and on disk.

Whatever fails (no library, an old one, a crash, no answer in time) gives None, and the caller falls back.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import select
import subprocess
import sys
import threading
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import memfit
from memfit.core.device import Device
from memfit.hardware.cpu import rates_folder
from memfit.hardware.cudnn.backend import Configuration
from memfit.hardware.cudnn.finding import library_folders, library_path
from memfit.hardware.cudnn.properties import properties_json
from memfit.hardware.cudnn.question import ConvolutionCall

_START_S, _ANSWER_S = 30.0, 10.0
_MOST_CRASHES = 3
Answer = tuple[Configuration, ...]


class Asking:
    """A child process with a cuDNN in it, started at the first question that no cache answers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._crashes = 0
        self._lock = threading.Lock()
        self._waiting = ""
        self.version: int | None = None

    def configurations(self, call: ConvolutionCall, card: str) -> Answer | None:
        """All that cuDNN proposes, in order; None where it does not answer."""
        with self._lock:
            if not self._started():
                return None
            found = self._exchange({"call": call.to_json(), "card": card}, _ANSWER_S)
            if found is None:
                self._crashed()
                return None
        if "configurations" not in found:
            return ()
        return tuple(Configuration(engine, size, tuple(notes)) for engine, size, notes in found["configurations"])

    def ready(self) -> bool:
        """Whether a library answers here; afterwards `version` says which."""
        with self._lock:
            return self._started()

    def close(self) -> None:
        child, self._child = self._child, None
        if child is None or self._owner != os.getpid():
            return
        with contextlib.suppress(OSError):
            child.kill()
            child.wait()

    def _started(self) -> bool:
        if self._owner != os.getpid():  # a fork: the child belongs to the other process
            self._child, self._owner = None, os.getpid()
        if self._child is not None:
            return True
        if self._crashes >= _MOST_CRASHES:
            return False
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "memfit.hardware.cudnn.child", str(self._path)], env=_environment(self._path),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except OSError:
            self._crashes = _MOST_CRASHES
            return False
        atexit.register(self.close)
        self._waiting = ""
        hello = self._exchange(None, _START_S)
        if hello is None or "version" not in hello:
            self.close()
            self._crashes = _MOST_CRASHES
            return False
        self.version = int(hello["version"])
        return True

    def _crashed(self) -> None:
        self._crashes += 1
        self.close()

    def _exchange(self, question: dict[str, Any] | None, limit_s: float) -> dict[str, Any] | None:
        child: Any = self._child
        try:
            if question is not None:
                child.stdin.write((json.dumps(question) + "\n").encode())
                child.stdin.flush()
            while "\n" not in self._waiting:
                if not select.select([child.stdout], [], [], limit_s)[0]:
                    return None
                part = os.read(child.stdout.fileno(), 1 << 16)
                if not part:
                    return None
                self._waiting += part.decode()
            line, _, self._waiting = self._waiting.partition("\n")
            return json.loads(line)
        except (OSError, ValueError):
            return None


class CardOracle:
    """cuDNN's answers for one described card. Kept on disk by version and card, one line an answer."""

    def __init__(self, asking: Asking, version: int, card: str) -> None:
        self._asking, self._card = asking, card
        self.version = version
        key = hashlib.sha256(card.encode()).hexdigest()[:16]
        self._file = rates_folder() / f"cudnn-{version}-{key}.jsonl"
        self._known = _read(self._file)

    def configurations(self, call: ConvolutionCall) -> Answer | None:
        """What cuDNN proposes for the call, before PyTorch leaves engines out; None where it does not answer."""
        plain = replace(call, allow_tf32=True, deterministic=False)
        key = json.dumps(plain.to_json(), separators=(",", ":"))
        if key not in self._known:
            found = self._asking.configurations(plain, self._card)
            if found is None:
                return None
            self._known[key] = found
            self._keep(key, found)
        return self._known[key]

    def _keep(self, key: str, found: Answer) -> None:
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, found], separators=(",", ":")) + "\n")


def oracle(device: Device) -> CardOracle | None:
    """The installed cuDNN asked about a card; None where none is installed, it is older than 9.8, or does not answer."""
    path = library_path()
    if path is None:
        return None
    try:
        card = properties_json(device)
    except ValueError:
        return None
    return _oracle(str(path), card)


@lru_cache(maxsize=64)
def _oracle(path: str, card: str) -> CardOracle | None:
    asking = _asking(path)
    return CardOracle(asking, asking.version, card) if asking.ready() and asking.version is not None else None


@lru_cache(maxsize=4)
def _asking(path: str) -> Asking:
    return Asking(Path(path))


def _read(path: Path) -> dict[str, Answer]:
    known: dict[str, Answer] = {}
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, TypeError):  # a line that was cut short
                key, found = json.loads(line)
                known[key] = tuple(Configuration(engine, size, tuple(notes)) for engine, size, notes in found)
    return known


def _environment(library: Path) -> dict[str, str]:
    """The child finds this package, the library's own parts before any other's, and cuDNN's companions. It sees no card: it
    must not make a context on one."""
    def joined(variable: str, paths: list[str]) -> str:
        return os.pathsep.join([*paths, *filter(None, [os.environ.get(variable)])])

    here = str(Path(memfit.__file__).parent.parent)
    folders = [library.parent, *(folder for folder in library_folders() if folder.parent.name != "cudnn")]
    return {**os.environ, "PYTHONPATH": joined("PYTHONPATH", [here]), "CUDA_VISIBLE_DEVICES": "",
            "LD_LIBRARY_PATH": joined("LD_LIBRARY_PATH", [str(folder) for folder in folders if str(folder) != "."])}
