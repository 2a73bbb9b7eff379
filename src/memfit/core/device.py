"""A target device: what it holds, how fast it is, whose allocator it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from memfit.core.costs import Costs


@dataclass(frozen=True)
class Disk:
    """Bytes a second of mapped files: `read` and `write` between memory and disk; `rewrite`, changing pages that the system
    holds, which is all that happens while what is changed is no more than `cached_bytes`."""

    read: float
    write: float
    rewrite: float
    cached_bytes: int


@dataclass(frozen=True)
class Device:
    """What a simulation needs to know of a device.

    `rates` are peak floating-point operations per second by dtype name (`float32`, `bfloat16`, ...), `bandwidth`
    and `link` bytes per second (its own memory; to the host). `overhead_s` is the cost of one operator call.
    `costs` are measured operator calls, where there are any; `disk` is where memory may be moved to, where that is known.
    `capacity_bytes` is what can be used, not the label. `sources` says where each number comes from.
    """

    name: str
    kind: str  # "cpu" or "cuda"
    capacity_bytes: int
    rates: Mapping[str, float]
    bandwidth: float
    link: float | None = None
    overhead_s: float = 0.0
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    title: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    costs: Costs | None = field(default=None, repr=False)
    disk: Disk | None = None
