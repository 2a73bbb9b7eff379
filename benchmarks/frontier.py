"""memfit's plans against what people do by hand, on five jobs at 75, 50, 35, 25 and 15 % of plain's measured peak, and on two
of them with batch 1; fidelity `resampled`.

    python benchmarks/frontier_peers.py     first: the peers' peaks, and whether their result is plain's
    python benchmarks/frontier.py           plan and time what is missing (resumable); results/frontier.csv and .md
    python benchmarks/frontier.py --check   read the results, print the cells, exit 1 where something does not hold
    python benchmarks/frontier.py --only J2,J5

A step's time is what the training thread was on a processor, which on a quiet machine is the time that passes; steps are
taken in turn, with OpenMP's threads waiting as they do by default (so the machine has to be quiet). A
peer counts in a cell if it fits the budget by its own measured peak and its result is
plain's.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import frontier_jobs
import frontier_peers
import machine
from memfit.plan import make_plan
from peers import COMPILED
from results_file import append_rows, read_rows
from side_by_side import Failed, Side, Times, in_turn, looked, ratio

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "frontier.csv"
SHARES = (75, 50, 35, 25, 15)
CELLS = [(job, share) for job in ("J2", "J5", "J1", "J4", "J3") for share in SHARES]
CELLS += [(job, share) for job in ("J2b1", "J4b1") for share in SHARES[:3]]
FIELDS = ["job", "share", "budget_bytes", "outcome", "floor_bytes", "strategies", "choices", "predicted_bytes", "peak_bytes",
          "same_result", "predicted_slowdown", "vs_plain", "vs_plain_low", "vs_plain_high",
          "vs_plain_settled", "vs_plain_settled_low", "vs_plain_settled_high", "peer", "vs_peer", "vs_peer_low",
          "vs_peer_high", "vs_peer_settled", "vs_peer_settled_low", "vs_peer_settled_high", "step_s", "plan_s",
          "took_s", "note"]
# Peers that are tried in a cell, likely fastest first: two of them are timed.
ORDER = ("plain", "backward-step", "compile", "micro-2", "micro-4", "micro-8", "selective", *COMPILED, "checkpoint",
         "checkpoint+backward-step", "micro-4+checkpoint", "micro-8+checkpoint", "micro-4+checkpoint+backward-step",
         "micro-8+checkpoint+backward-step")
TIMED_PEERS, ROUNDS = 2, 6
MOST_AGAINST_PLAIN = {("J2", 50): 1.00, ("J5", 50): 1.15, ("J1", 50): 1.30, ("J3", 50): 1.25, ("J4", 50): 1.25}


def cell(job: str, share: int, folder: Path) -> dict[str, Any]:
    """One cell: plan, measure the plan's peak and result, time it beside plain and the fastest peers that fit."""
    began = time.perf_counter()
    peers = {row["method"]: row for row in frontier_peers.read() if row["job"] == job and row["peak_bytes"]}
    budget = int(peers["plain"]["peak_bytes"]) * share // 100
    plan = make_plan(frontier_jobs.job(job), budget=budget, device="cpu")
    choices = [[one.name, dict(one.settings)] for one in plan.strategies]
    row: dict[str, Any] = {
        "job": job, "share": share, "budget_bytes": budget, "floor_bytes": plan.floor_bytes, "outcome": "floor",
        "strategies": " + ".join(name for name, _ in choices) or "plain", "plan_s": round(plan.took_s, 1)}
    if plan.fits:
        row.update(outcome="fits", choices=json.dumps(choices), predicted_bytes=plan.predicted.peak.allocated_bytes,
                   predicted_slowdown=round(plan.slowdown, 3))
        row.update(_look(job, choices, folder))
        row.update(_timed(job, choices, _fitting(peers.values(), budget)))
    return {**row, "took_s": round(time.perf_counter() - began)}


def _fitting(rows: Iterable[dict[str, str]], budget: int) -> list[str]:
    fit = {row["method"] for row in rows if row["same_result"] == "True" and int(row["peak_bytes"]) <= budget}
    return [method for method in ORDER if method in fit]


def _look(job: str, choices: Sequence[Any], folder: Path) -> dict[str, Any]:
    plain = folder / f"{job}-plain.pt"
    if not plain.exists():
        frontier_peers.look(job, "plain", folder)
    path = folder / f"{job}-memfit.pt"
    try:
        seen = looked({"job": job, "choices": choices, "path": str(path)})
    except Failed as failed:
        return {"note": str(failed)}
    same = frontier_peers.differences(torch.load(plain), torch.load(path))
    return {"peak_bytes": seen["peak_bytes"], "same_result": same["same_result"]}


def _timed(job: str, choices: Sequence[Any], peers: Sequence[str]) -> dict[str, Any]:
    tried = [peer for peer in peers if peer != "plain"][:TIMED_PEERS]
    try:
        times = _beside(job, choices, "plain")
        row: dict[str, Any] = {"step_s": f"{_median(times, 'memfit'):.4f}", **_ratios(times, "plain", "vs_plain"),
                               **_ratios(times, "plain, settled", "vs_plain_settled")}
        beside = {peer: _beside(job, choices, peer) for peer in tried}
    except Failed as failed:
        return {"note": str(failed)}
    if tried:
        usual = max(tried, key=lambda peer: ratio(beside[peer], "memfit", peer)[0])
        settled = max(tried, key=lambda peer: ratio(beside[peer], "memfit", f"{peer}, settled")[0])
        row.update({"peer": usual, **_ratios(beside[usual], usual, "vs_peer")})
        row.update(_ratios(beside[settled], f"{settled}, settled", "vs_peer_settled"))
    return row


def _beside(job: str, choices: Sequence[Any], method: str) -> Times:
    """The plan beside a method, as people run it and with the allocator settled: three processes, as memory allows."""
    spec = {"job": job, "method": method}
    sides = [Side("memfit", {"job": job, "choices": choices}), Side(method, spec, settled=False)]
    sides.append(Side(f"{method}, settled", spec))
    return in_turn(sides, ROUNDS, environment={})


def _median(times: Times, name: str) -> float:
    return statistics.median(one["thread_s"] for one in times[name])


def _ratios(times: Times, other: str, name: str) -> dict[str, str]:
    return {key: f"{value:.3f}" for key, value in
            zip((name, f"{name}_low", f"{name}_high"), ratio(times, "memfit", other), strict=True)}


def read() -> list[dict[str, str]]:
    return read_rows(RESULTS)


def add(row: dict[str, Any]) -> None:
    append_rows(RESULTS, FIELDS, [row])
    print({key: value for key, value in row.items() if key not in ("choices", "budget_bytes", "floor_bytes")}, flush=True)


def check() -> int:
    """Print the cells and what does not hold; 1 if anything does not."""
    rows = {(row["job"], int(row["share"])): row for row in read()}
    for key in CELLS:
        print(_line(key, rows.get(key)))
    wrong = [f"{job} at {share} %: not measured" for job, share in CELLS if (job, share) not in rows]
    for (job, share), row in rows.items():
        where = f"{job} at {share} %"
        if row["outcome"] == "fits":
            wrong += [f"{where}: {row['note']}"] if row["note"] else []
            wrong += [f"{where}: peak above the budget"] if int(row["peak_bytes"] or 0) > int(row["budget_bytes"]) else []
            wrong += [f"{where}: not the same result"] if row["same_result"] != "True" else []
        for name in ("vs_peer_low", "vs_peer_settled_low"):
            wrong += [f"{where}: {name} is {row[name]}, above 1.05"] if row[name] and float(row[name]) > 1.05 else []
        most = MOST_AGAINST_PLAIN.get((job, share))
        if most and not (row["vs_plain"] and float(row["vs_plain"]) <= most):
            wrong.append(f"{where}: {row['vs_plain'] or 'no'} times plain, wanted {most}")
    for name, most in (("vs_peer", 0.97), ("vs_peer_settled", 1.00)):
        values = [float(row[name]) for row in rows.values() if row[name]]
        if values:
            print(f"{name}: median {statistics.median(values):.3f} over {len(values)} cells, wanted {most}")
            wrong += [f"{name}: median above {most}"] if statistics.median(values) > most else []
    print("\n".join(wrong) or "all holds")
    return 1 if wrong else 0


def _line(key: tuple[str, int], row: dict[str, str] | None) -> str:
    head = f"{key[0]:5s} {key[1]:3d} %  "
    if row is None:
        return head + "-"
    if row["outcome"] != "fits":
        return head + f"floor {int(row['floor_bytes']) / 2**20:.0f} MiB of {int(row['budget_bytes']) / 2**20:.0f}"
    peer = (f"{row['peer']}: {row['vs_peer']} [{row['vs_peer_low']}, {row['vs_peer_high']}], settled "
            f"{row['vs_peer_settled']} [{row['vs_peer_settled_low']}, {row['vs_peer_settled_high']}]"
            if row["peer"] else "no peer fits")
    plain = f"{row['vs_plain']} of plain, settled {row['vs_plain_settled']}, predicted {row['predicted_slowdown']}"
    return f"{head}{plain}; {peer}; {row['strategies']}"


def write_page() -> None:
    """results/frontier.md: the cells as a table."""
    head = ["job", "budget", "plan", "of plain's time", "same allocator", "predicted", "fastest peer that fits",
            "of its time", "of its time, same allocator"]
    lines = [[row["job"], f"{row['share']} %", row["strategies"] if row["outcome"] == "fits" else
              f"floor: {int(row['floor_bytes']) / 2**20:.0f} MiB", _span(row, "vs_plain"), _span(row, "vs_plain_settled"),
              row["predicted_slowdown"], row["peer"] or "none", _span(row, "vs_peer"), _span(row, "vs_peer_settled")]
             for row in read()]
    text = [*machine.heading("The frontier", "python benchmarks/frontier.py"), *machine.table(head, lines), ""]
    RESULTS.with_suffix(".md").write_text("\n".join(text))


def _span(row: dict[str, str], name: str) -> str:
    return f"{row[name]} [{row[f'{name}_low']}, {row[f'{name}_high']}]" if row[name] else ""


def main() -> int:
    if "--check" in sys.argv:
        return check()
    only = sys.argv[sys.argv.index("--only") + 1].split(",") if "--only" in sys.argv else []
    done = {(row["job"], int(row["share"])) for row in read()}
    with tempfile.TemporaryDirectory() as folder:
        for job, share in CELLS:
            if (job, share) not in done and (not only or job in only):
                add(cell(job, share, Path(folder)))
                write_page()
    return 0 if only else check()


if __name__ == "__main__":
    sys.exit(main())
