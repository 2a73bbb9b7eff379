"""Full fine-tuning of GPT-2 (124 million parameters, AdamW) in 35 and in 20 % of plain's peak, results in lower precision
allowed: the peak that is measured, the step time beside plain's, both sides in turns.

    python benchmarks/full_finetuning.py            run what is missing (resumable); results/full_finetuning.csv and .md
    python benchmarks/full_finetuning.py --check    read the results, print them, exit 1 where something does not hold
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import frontier_jobs
import frontier_peers
import machine
from memfit.plan import make_plan
from results_file import append_rows, read_rows
from side_by_side import Failed, Side, in_turn, looked, ratio

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "full_finetuning.csv"
JOB, ROUNDS = "J4", 5
MOST = {35: 1.3, 20: float("inf")}
FIELDS = ["share", "fidelity", "outcome", "strategies", "choices", "budget_bytes", "predicted_bytes", "peak_bytes",
          "floor_bytes", "predicted_slowdown", "vs_plain", "vs_plain_low", "vs_plain_high", "step_s", "plan_s"]


def cell(share: int, fidelity: str) -> dict[str, Any]:
    """One share of plain's measured peak: planned, measured, timed."""
    plain = next(row for row in frontier_peers.read() if row["job"] == JOB and row["method"] == "plain")
    budget = int(plain["peak_bytes"]) * share // 100
    plan = make_plan(frontier_jobs.job(JOB), budget=budget, device="cpu", fidelity=fidelity)
    choices = [[one.name, dict(one.settings)] for one in plan.strategies]
    row: dict[str, Any] = {
        "share": share, "budget_bytes": budget, "floor_bytes": plan.floor_bytes, "fidelity": plan.fidelity, "outcome": "floor",
        "strategies": " + ".join(name for name, _ in choices), "choices": json.dumps(choices), "plan_s": round(plan.took_s, 1)}
    if not plan.fits:
        return row
    times = in_turn([Side("memfit", {"job": JOB, "choices": choices}), Side("plain", {"job": JOB, "method": "plain"})], ROUNDS,
                    environment={})
    middle, low, high = ratio(times, "memfit", "plain", "wall_s")
    return {**row, "outcome": "fits", "predicted_bytes": plan.predicted.peak.allocated_bytes, "peak_bytes": _peak(choices),
            "predicted_slowdown": round(plan.slowdown, 3), "vs_plain": round(middle, 3), "vs_plain_low": round(low, 3),
            "vs_plain_high": round(high, 3), "step_s": round(statistics.median(one["wall_s"] for one in times["memfit"]), 3)}


def _peak(choices: list[Any]) -> int:
    try:
        return int(looked({"job": JOB, "choices": choices, "path": os.devnull})["peak_bytes"])
    except Failed as failed:
        raise SystemExit(str(failed)) from None


def write_page() -> None:
    head = ("budget", "fidelity", "plan", "peak MiB", "predicted", "budget MiB", "of plain's time", "predicted time")
    lines = [(f"{row['share']} %", row["fidelity"], row["strategies"], *(_mib(row[name]) for name in (
        "peak_bytes", "predicted_bytes", "budget_bytes")), f"{row['vs_plain']} [{row['vs_plain_low']}, {row['vs_plain_high']}]",
        row["predicted_slowdown"]) for row in read_rows(RESULTS)]
    text = machine.heading("Full fine-tuning of GPT-2", "python benchmarks/full_finetuning.py")
    RESULTS.with_suffix(".md").write_text("\n".join([*text, *machine.table(head, lines), ""]))


def _mib(text: str) -> str:
    return f"{int(text) / 2**20:.0f}" if text else ""


def check() -> int:
    rows = read_rows(RESULTS)
    wrong = [f"{share} % is not measured" for share in MOST if str(share) not in {row["share"] for row in rows}]
    for row in rows:
        print(f"{row['share']} %: {row['outcome']}, {row['strategies']}, peak {_mib(row['peak_bytes'])} of "
              f"{_mib(row['budget_bytes'])} MiB, {row['vs_plain']} x plain's time (predicted {row['predicted_slowdown']})")
        if row["outcome"] != "fits" or int(row["peak_bytes"]) > int(row["budget_bytes"]):
            wrong.append(f"{row['share']} %: does not fit")
        elif float(row["vs_plain"]) > MOST[int(row["share"])]:
            wrong.append(f"{row['share']} %: {row['vs_plain']} x plain's time, wanted {MOST[int(row['share'])]}")
    print("\n".join(wrong) or "all holds")
    return 1 if wrong else 0


def main() -> int:
    if "--check" in sys.argv:
        return check()
    done = {row["share"] for row in read_rows(RESULTS)}
    for share in MOST:
        if str(share) not in done:
            row = cell(share, "reduced")
            append_rows(RESULTS, FIELDS, [row])
            print({key: value for key, value in row.items() if key != "choices"}, flush=True)
            write_page()
    return check()


if __name__ == "__main__":
    sys.exit(main())
