"""What the table of predictions adds up to, and what it must."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALLOCATOR = ("allocated", "first_allocated")
DRIVER = ("process", "reserved_and_kernels")


@dataclass(frozen=True)
class Line:
    """A predicted row. `survived_bytes` is the smallest cap that the measured job is known to have run under (the peak
    itself, or the cap of a second run), `rival_bytes` what xMem estimated for it (0: no such row)."""

    row: str
    reads: str
    group: str
    measured_bytes: int
    predicted_bytes: int
    high_bytes: int
    survived_bytes: int = 0
    rival_bytes: int = 0

    @property
    def error_percent(self) -> float:
        return 100 * (self.predicted_bytes / self.measured_bytes - 1)

    @property
    def high_percent(self) -> float:
        return 100 * (self.high_bytes / self.measured_bytes - 1)

    @classmethod
    def of(cls, row: dict[str, str], capped: dict[str, str] | None) -> Line:
        measured = int(row["measured_bytes"])
        survived = rival = 0
        if capped is not None:
            rival, survived = int(capped["xmem_bytes"]), measured
            if capped["xmem_2nd_oom"] == "False":
                survived = min(measured, _cap_bytes(rival, int(capped["gpu_total_bytes"])))
        return cls(row["row"], row["reads"], row["group"], measured, int(row["predicted_bytes"]), int(row["high_bytes"]),
                   survived, rival)


def _cap_bytes(estimate_bytes: int, total_bytes: int) -> int:
    """The second run was capped at the share of the card that xMem estimated, rounded to 1 %."""
    return int(round(estimate_bytes / total_bytes, 2) * total_bytes)


@dataclass(frozen=True)
class Goal:
    """`value` of the lines of `chosen` is at most `limit`."""

    name: str
    chosen: Callable[[Line], bool]
    value: Callable[[Sequence[Line]], float]
    limit: float


def median_error(lines: Sequence[Line]) -> float:
    return quantile([abs(line.error_percent) for line in lines], 0.5)


def ninetieth(lines: Sequence[Line]) -> float:
    return quantile([abs(line.error_percent) for line in lines], 0.9)


def share_under(percent: float) -> Callable[[Sequence[Line]], float]:
    return lambda lines: 100 * sum(line.error_percent < -percent for line in lines) / max(1, len(lines))


def share_above_high(lines: Sequence[Line]) -> float:
    return 100 * sum(line.measured_bytes > line.high_bytes for line in lines) / max(1, len(lines))


def median_high(lines: Sequence[Line]) -> float:
    return quantile([line.high_percent for line in lines], 0.5)


def below_survived(lines: Sequence[Line]) -> int:
    return sum(line.predicted_bytes < line.survived_bytes for line in lines)


def rival_below_survived(lines: Sequence[Line]) -> int:
    return sum(line.rival_bytes < line.survived_bytes for line in lines)


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank; nan where there is nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def is_allocator(line: Line) -> bool:
    return line.reads in ALLOCATOR and line.group == "other"


def is_reserved(line: Line) -> bool:
    return line.reads == "reserved"


def is_driver(line: Line) -> bool:
    return line.reads in DRIVER and line.group != "unlike"


def is_counted(line: Line) -> bool:
    return line.group != "unlike"


GOALS = (
    Goal("allocator level: median absolute error %", is_allocator, median_error, 0.1),
    Goal("allocator level: 90th percentile %", is_allocator, ninetieth, 1.5),
    Goal("allocator level: share of rows under by more than 2 %", is_allocator, share_under(2), 2.0),
    Goal("driver level: median absolute error %", is_driver, median_error, 2.5),
    Goal("driver level: share of rows under by more than 5 %", is_driver, share_under(5), 5.0),
    *(goal for name, chosen in (("allocator level", is_allocator), ("reserved", is_reserved), ("driver level", is_driver),
                                             ("all rows", is_counted))
      for goal in (
        Goal(f"{name}: share of measured peaks above the interval's upper end, %", chosen, share_above_high, 5.0),
        Goal(f"{name}: median of the upper end above the measured peak, %", chosen, median_high, 8.0))),
)
GROUPS = {
    "allocator level, no convolutions": is_allocator,
    "allocator level, rows of another set-up included": lambda line: line.reads in ALLOCATOR,
    "reserved": is_reserved,
    "driver level": is_driver,
    "driver level, convolutions": lambda line: line.reads in DRIVER and line.group == "convolutions",
    "driver level, others": lambda line: line.reads in DRIVER and line.group == "other",
}


def report(lines: Sequence[Line]) -> list[str]:
    """Markdown: the groups, the goals, and the comparison of caps."""
    found = ["| rows | n | median abs % | p90 | worst under | worst over | under by > 2 % | > 5 % | above upper end |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, chosen in GROUPS.items():
        some = [line for line in lines if chosen(line)]
        errors = [line.error_percent for line in some] or [0.0]
        found.append(f"| {name} | {len(some)} | {median_error(some):.3f} | {ninetieth(some):.2f} | {min(errors):+.2f} | "
                     f"{max(errors):+.2f} | {share_under(2)(some):.1f} % | {share_under(5)(some):.1f} % | "
                     f"{share_above_high(some):.1f} % |")
    found.append("")
    for goal in GOALS:
        some = [line for line in lines if goal.chosen(line)]
        found.append(f"- {goal.name}: {goal.value(some):.3f} (at most {goal.limit})")
    capped = [line for line in lines if line.rival_bytes]
    found.append(f"- estimates below the smallest cap that the job survived: {below_survived(capped)} of {len(capped)} "
                 f"(xMem: {rival_below_survived(capped)})")
    return found


def failures(lines: Sequence[Line]) -> list[str]:
    """The goals that are not met."""
    bad = []
    for goal in GOALS:
        some = [line for line in lines if goal.chosen(line)]
        if not some or not goal.value(some) <= goal.limit:
            bad.append(f"{goal.name}: {goal.value(some):.3f} > {goal.limit}")
    capped = [line for line in lines if line.rival_bytes]
    if below_survived(capped) >= rival_below_survived(capped):
        bad.append(f"below the survived cap: {below_survived(capped)}, xMem {rival_below_survived(capped)}")
    rebuilt = {"P": sum(line.row[0] == "P" for line in lines), "X": sum(line.row[0] == "X" for line in lines)}
    for kind, least in (("P", 160), ("X", 40)):
        if rebuilt[kind] < least:
            bad.append(f"{rebuilt[kind]} rows {kind} are rebuilt, fewer than {least}")
    return bad
