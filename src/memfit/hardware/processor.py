"""This machine's processor: its name, its cores, and what it can be expected to do until that is measured."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_GHZ = 2.5  # where the system does not say
_REACHED = 0.7  # of the peak, by a large matrix product
_BANDWIDTH_A_CORE, _BANDWIDTH_AT_MOST = 1.0e10, 1.0e11  # bytes a second, read and written

# floating-point operations per cycle and core, multiply and add counted as two: what the vector units do at most
_FLOAT32 = (("avx512f", 64), ("avx2", 32), ("avx", 16), ("asimd", 16))
_BFLOAT16 = (("amx_bf16", 1024), ("avx512_bf16", 128), ("bf16", 64))
_BFLOAT16_EMULATED = 0.5  # of float32: converted before and after


@dataclass(frozen=True)
class Processor:
    name: str
    cores: int  # physical ones that this process may use
    threads: int  # that PyTorch takes
    ghz: float
    flags: frozenset[str]

    def rates(self) -> dict[str, float]:
        """Expected floating-point operations a second by dtype."""
        cycles = min(self.cores, self.threads) * self.ghz * 1e9 * _REACHED
        float32 = cycles * self._best(_FLOAT32, 8)
        bfloat16 = cycles * self._best(_BFLOAT16, 0) or float32 * _BFLOAT16_EMULATED
        return {"float32": float32, "bfloat16": bfloat16, "float16": float32 * _BFLOAT16_EMULATED}

    def bandwidth(self) -> float:
        """Expected bytes a second from and to main memory."""
        return min(self.cores * _BANDWIDTH_A_CORE, _BANDWIDTH_AT_MOST)

    def _best(self, table: tuple[tuple[str, int], ...], otherwise: int) -> int:
        return next((count for flag, count in table if flag in self.flags), otherwise)


@lru_cache(maxsize=1)
def processor() -> Processor:
    """The processor of this machine, read once."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        text = ""
    return parse_cpuinfo(text, usable_cpus())


def usable_cpus() -> frozenset[int]:
    """Logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def parse_cpuinfo(text: str, usable: frozenset[int]) -> Processor:
    """From the text of /proc/cpuinfo; empty where there is none."""
    blocks = [dict(re.findall(r"^([^\t:]+?)\s*: ?(.*)$", block, re.MULTILINE)) for block in text.split("\n\n")]
    mine = [block for block in blocks if block.get("processor", "").isdecimal() and int(block["processor"]) in usable]
    first = mine[0] if mine else {}
    name = first.get("model name") or first.get("Model") or platform.processor() or platform.machine()
    places = {(block.get("physical id"), block["core id"]) for block in mine if "core id" in block}
    flags = frozenset((first.get("flags") or first.get("Features") or _flags_elsewhere()).split())
    return Processor(name.strip(), len(places) or len(usable), _threads(len(usable)), _ghz(name, first), flags)


def _threads(usable: int) -> int:
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(asked) if asked.isdecimal() and int(asked) > 0 else usable


def _ghz(name: str, block: dict[str, str]) -> float:
    stated = re.search(r"@ ([0-9.]+)GHz", name)
    if stated:
        return float(stated[1])
    try:
        return float(block.get("cpu MHz", "")) / 1e3 or _GHZ
    except ValueError:
        return _GHZ


def _flags_elsewhere() -> str:
    return "asimd" if platform.machine().lower() in ("arm64", "aarch64") else "avx2"
