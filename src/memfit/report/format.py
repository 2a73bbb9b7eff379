"""The only place that turns numbers into words for people: sizes, times, shares, ratios, shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from memfit.core.units import GIB, KIB, MIB

UNKNOWN = "n/a"


def gib(size_bytes: int | None) -> str:
    """`size_bytes` as `1.23 GiB`; MiB below 1 GiB, KiB below 1 MiB, B below 1 KiB. `n/a` for None."""
    if size_bytes is None:
        return UNKNOWN
    sign, size = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    if size < KIB:
        return f"{sign}{size:d} B"
    for unit, name in ((KIB, "KiB"), (MIB, "MiB")):
        if round(size / unit, 1) < 1024:
            return f"{sign}{size / unit:.1f} {name}"
    return f"{sign}{size / GIB:.2f} GiB"


def seconds(duration_s: float | None) -> str:
    """`duration_s` as `1 h 05 min`, `2 min 05 s`, `12.3 s`, `1.23 s`, `0.412 s`, `12.3 ms` or `41 us`."""
    if duration_s is None or not math.isfinite(duration_s):
        return UNKNOWN
    if round(duration_s) >= 3600:
        minutes = round(duration_s / 60)
        return f"{minutes // 60} h {minutes % 60:02d} min"
    if round(duration_s, 1) >= 60:
        whole = round(duration_s)
        return f"{whole // 60} min {whole % 60:02d} s"
    if duration_s >= 0.1 or duration_s <= 0:
        return (
            f"{duration_s:.1f} s"
            if duration_s >= 9.995
            else f"{duration_s:.2f} s"
            if duration_s >= 1
            else f"{duration_s:.3f} s"
        )
    return f"{duration_s * 1e3:.3g} ms" if duration_s >= 1e-3 else f"{duration_s * 1e6:.3g} us"


def percent(share: float | None) -> str:
    """A share of 1 as `42 %`; one decimal below 10 %."""
    if share is None or not math.isfinite(share):
        return UNKNOWN
    value = share * 100
    return f"{value:.1f} %" if 0 < abs(value) < 9.95 else f"{value:.0f} %"


def ratio(value: float | None) -> str:
    """`1.19x`; three significant digits from 10 on."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.2f}x" if value < 9.995 else f"{value:.1f}x" if value < 99.95 else f"{value:.0f}x"


def number(value: float | None) -> str:
    """A loss or a metric with four significant digits; `NaN` and `inf` by name."""
    if value is None:
        return UNKNOWN
    if math.isnan(value):
        return "NaN"
    return f"{value:.4g}"


def difference(value: float) -> str:
    """A relative difference: `0`, `3.1e-7`, `0.012`."""
    if not math.isfinite(value):
        return number(value)
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:.2g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def shape(sizes: Sequence[int]) -> str:
    """`16 x 128 x 768`, or `scalar`."""
    return " x ".join(str(size) for size in sizes) or "scalar"


def rate(per_s: float | None, unit: str) -> str:
    """`per_s` with a decimal prefix: `312 TFLOP/s`, `768 GB/s`. `unit` is what stands behind the prefix."""
    if per_s is None or not math.isfinite(per_s):
        return UNKNOWN
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if per_s >= size:
            return f"{per_s / size:.3g} {prefix}{unit}"
    return f"{per_s:.3g} {unit}"


def yes_no(value: bool | None) -> str:
    """`yes`, `no`, or `n/a` for what was not looked at."""
    return UNKNOWN if value is None else "yes" if value else "no"
