"""The settled allocator against the default one: step time side by side, and resident memory against tensors.

    python benchmarks/settled_allocator.py            run what is missing (resumable); results/settled_allocator.csv, .md
    python benchmarks/settled_allocator.py --check    read the results, print them, exit 1 above 1.05 x the time

A round is two fresh processes, one under each allocator, that step in turns: one is timed while the other waits. Pairs
of neighbouring steps give ratios; the median of all pairs of all rounds counts. Who steps first changes by round.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from machine import heading, table
from memfit.launch import MEASURING, WorkerResult, run_worker
from memfit.prove.turns import Referee, Rounds
from results_file import append_rows, read_rows
from settled_allocator_side import CONVOLUTIONS

RESULTS = Path(__file__).parent / "results" / "settled_allocator.csv"
AT_MOST = 1.05
ROUNDS, PAIRS = 4, Rounds(least=6, most=15, enough_s=60.0)
SIDES = ("settled", "default")
MEASURED = ("allocator", "resident_growth_bytes", "tensor_peak_bytes", "faults_a_step")
FIELDS = ["target", "settings", "round", "first", "pairs", "step_ratio", "cpu_ratio", "settled_step_s", "default_step_s",
          *(f"{side}_{name}" for side in SIDES for name in MEASURED), "step_ratios", "cpu_ratios"]
TARGETS: Mapping[str, tuple[str, dict[str, int]]] = {
    "vit-mini": ("vit-mini", {"batch": 256}), "resnet18": ("resnet18", {"batch": 16, "image": 128}),
    "bert-mini": ("bert-mini", {"batch": 16}), "convolutions": (CONVOLUTIONS, {"batch": 32, "image": 96}),
}


def run_round(name: str, number: int, pairs: Rounds = PAIRS) -> dict[str, Any]:
    """One round as a row. Raises the error of a side that failed."""
    target, settings = TARGETS[name]
    order = SIDES if number % 2 == 0 else SIDES[::-1]
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        referee = Referee(Path(folder), order, pairs)
        results = _together(referee, {"target": target, "settings": settings}, times)
        referee.close()
    for result in results.values():
        if result.error is not None:
            raise result.error
    count = min(len(one) for one in times.values())
    walls, cpus = ([a[index] / b[index] for a, b in zip(times["settled"][:count], times["default"][:count])]
                   for index in (0, 1))
    medians = {f"{side}_step_s": round(statistics.median(wall for wall, _ in times[side]), 5) for side in SIDES}
    measured = {f"{side}_{name}": (results[side].result or {})[name] for side in SIDES for name in MEASURED}
    return {"target": name, "settings": " ".join(f"{key}={value}" for key, value in settings.items()), "round": number,
            "first": order[0], "pairs": count, "step_ratio": round(statistics.median(walls), 4),
            "cpu_ratio": round(statistics.median(cpus), 4), **medians, **measured,
            "step_ratios": _listed(walls), "cpu_ratios": _listed(cpus)}


def _together(
    referee: Referee, subject: Mapping[str, Any], times: Mapping[str, list[tuple[float, float]]]
) -> dict[str, WorkerResult]:
    """Both sides at once; `times` gets (wall, processor) seconds of their steps."""
    results: dict[str, WorkerResult] = {}

    def run(side: str) -> None:
        def heard(event: dict[str, Any]) -> None:
            if event["kind"] == "timed":
                times[side].append((event["step_s"], event["cpu_s"]))
            referee.on_event(side, event)

        try:
            spec = {**subject, "turn": str(referee.paths[side])}
            results[side] = run_worker("settled_allocator_side", spec, settled=side == "settled", on_event=heard,
                                       environment=MEASURING, show_output=False)
        finally:
            referee.ended(side)

    threads = [threading.Thread(target=run, args=(side,)) for side in SIDES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _listed(ratios: list[float]) -> str:
    return " ".join(f"{ratio:.3f}" for ratio in ratios)


def read() -> list[dict[str, str]]:
    return read_rows(RESULTS)


def add(row: dict[str, Any]) -> None:
    append_rows(RESULTS, FIELDS, [row])
    print({name: row[name] for name in FIELDS[:9]}, flush=True)


def summary(rows: list[dict[str, str]]) -> list[dict[str, Any]]:
    """One line a target: medians over all its pairs, and the largest resident growth of its rounds."""
    found = []
    for target in dict.fromkeys(row["target"] for row in rows):
        mine = [row for row in rows if row["target"] == target]
        ratios = {kind: sorted(float(one) for row in mine for one in row[f"{kind}_ratios"].split()) for kind in ("step", "cpu")}
        quarters = statistics.quantiles(ratios["step"], n=4)
        found.append({
            "target": target, "settings": mine[0]["settings"], "rounds": len(mine), "pairs": len(ratios["step"]),
            "step_ratio": statistics.median(ratios["step"]), "middle_half": (quarters[0], quarters[2]),
            "cpu_ratio": statistics.median(ratios["cpu"]),
            "tensors": max(int(row["settled_tensor_peak_bytes"]) for row in mine),
            **{side: max(int(row[f"{side}_resident_growth_bytes"]) for row in mine) for side in SIDES},
            **{f"{side}_faults": statistics.median(int(row[f"{side}_faults_a_step"]) for row in mine) for side in SIDES},
            **{f"{side}_step_s": statistics.median(float(row[f"{side}_step_s"]) for row in mine) for side in SIDES}})
    return found


def page(rows: list[dict[str, str]]) -> list[str]:
    head = ["job", "settings", "pairs", "time settled / default", "middle half", "processor time", "step s settled, default",
            "page faults a step settled, default", "tensors MiB", "resident / tensors settled", "default"]
    cells = [[one["target"], one["settings"], f"{one['pairs']} in {one['rounds']} rounds", f"**{one['step_ratio']:.3f}**",
              "{:.3f} to {:.3f}".format(*one["middle_half"]), f"{one['cpu_ratio']:.3f}",
              f"{one['settled_step_s']:.3f}, {one['default_step_s']:.3f}",
              f"{one['settled_faults']:.0f}, {one['default_faults']:.0f}", f"{one['tensors'] / 2**20:.0f}",
              f"{one['settled'] / one['tensors']:.3f}", f"{one['default'] / one['tensors']:.3f}"] for one in summary(rows)]
    allocators = ", ".join(f"{side}: {rows[0][f'{side}_allocator']}" for side in SIDES) if rows else ""
    note = ["Medians of paired ratios of neighbouring steps, OMP_WAIT_POLICY=PASSIVE. Resident is the highest growth of",
            f"RssAnon + RssShmem above the warm process, the job included. {allocators}.", ""]
    return [*heading("The settled allocator against the default one", "python benchmarks/settled_allocator.py"), *note,
            *table(head, cells), ""]


def check() -> int:
    """Print the summary; 1 where a job's median ratio is above 1.05, or a job is missing."""
    rows = read()
    found = summary(rows)
    for one in found:
        print(f"{one['target']:14s} time {one['step_ratio']:.3f} cpu {one['cpu_ratio']:.3f} of the default's, "
              f"{one['pairs']} pairs; resident / tensors {one['settled'] / one['tensors']:.3f}, "
              f"default {one['default'] / one['tensors']:.3f}")
    bad = [one["target"] for one in found if one["step_ratio"] > AT_MOST]
    missing = sorted(set(TARGETS) - {one["target"] for one in found})
    print(f"above {AT_MOST}: {', '.join(bad) or 'none'}; missing: {', '.join(missing) or 'none'}")
    return 1 if bad or missing else 0


def main() -> int:
    if "--check" in sys.argv:
        return check()
    done = {(row["target"], int(row["round"])) for row in read()}
    for number in range(ROUNDS):
        for name in TARGETS:
            if (name, number) not in done:
                add(run_round(name, number))
    RESULTS.with_suffix(".md").write_text("\n".join(page(read())))
    return check()


if __name__ == "__main__":
    sys.exit(main())
