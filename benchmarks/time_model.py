"""Predicted against measured slowdown: recipes x plans, timed in turn with plain; results/time_model.csv and .md.

    python benchmarks/time_model.py            what is missing (resumable)
    python benchmarks/time_model.py --check    read the results; exit 1 above 5 points of median error or below a tau of 0.85

The plans are single strategies and those that `memfit plan` makes for budgets of 80, 60 and 40 % (the frontier, whose order
is what Kendall's tau is of, plain among it).
"""

from __future__ import annotations

import json
import statistics
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import frontier_jobs
import machine
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.plan import make_plan
from memfit.plan.explore import Candidate, Explorer
from memfit.plan.target import target_device
from results_file import append_rows, read_rows
from side_by_side import Failed, Side, in_turn, ratio

RESULTS = Path(__file__).parent / "results" / "time_model.csv"
FIELDS = ["job", "plan", "choices", "predicted", "measured", "low", "high", "wall", "note"]
JOBS = ("vit-mini", "bert-mini", "gpt-mini", "llama-mini", "resnet18", "J5", "J2", "J1", "J4b1", "mobilenet-v3")
SINGLE = (
    ("micro-batches", {"count": 2}), ("micro-batches", {"count": 8}), ("autocast", {"dtype": "bfloat16"}),
    ("fused-step", {}), ("step-in-backward", {}))
SHARES = ("80%", "60%", "40%")
ROUNDS, TOGETHER = 7, 4


def plans(job: Job) -> dict[str, list[list[Any]]]:
    """Named choices that apply to the job."""
    explorer = Explorer(job, target_device("cpu"))
    found: dict[str, list[list[Any]]] = {}
    for name, settings in SINGLE:
        if isinstance(explorer.candidate([Choice(name, settings)]), Candidate):
            found[" ".join([name, *(str(value) for value in settings.values())])] = [[name, settings]]
    for share in SHARES:
        plan = make_plan(job, budget=share)
        choices = [[one.name, dict(one.settings)] for one in plan.strategies]
        if plan.fits and choices and choices not in found.values():
            found[f"plan for {share}"] = choices
    return found


def rows(name: str) -> list[dict[str, Any]]:
    """All of a job's rows: predicted by the time model, measured in turn with plain, a few at a time."""
    job = frontier_jobs.job(name)
    explorer = Explorer(job, target_device("cpu"))
    made = list(plans(job).items())
    found = []
    for start in range(0, len(made), TOGETHER):
        some = dict(made[start:start + TOGETHER])
        sides = [Side("plain", {"job": name, "method": "plain"}),
                 *(Side(plan, {"job": name, "choices": choices}) for plan, choices in some.items())]
        try:
            times = in_turn(sides, ROUNDS)
        except Failed as failed:
            found.append({"job": name, "plan": " | ".join(some), "note": str(failed)})
            continue
        for plan, choices in some.items():
            seen = explorer.candidate([Choice(one, settings) for one, settings in choices])
            assert isinstance(seen, Candidate)
            middle, low, high = (f"{value:.3f}" for value in ratio(times, plan, "plain"))
            found.append({
                "job": name, "plan": plan, "choices": json.dumps(choices), "measured": middle, "low": low, "high": high,
                "predicted": f"{seen.simulation.step_s / explorer.plain.simulation.step_s:.3f}",
                "wall": f"{ratio(times, plan, 'plain', 'wall_s')[0]:.3f}"})
    return found


def tau(pairs: list[tuple[float, float]]) -> float:
    """Kendall's: pairs in the same order less pairs in the other, of all."""
    signs = [(a[0] - b[0]) * (a[1] - b[1]) for a, b in combinations(pairs, 2)]
    return (sum(s > 0 for s in signs) - sum(s < 0 for s in signs)) / len(signs) if signs else 1.0


def read() -> list[dict[str, str]]:
    return read_rows(RESULTS)


def summary() -> tuple[float, float, list[str]]:
    """Median absolute error, mean tau of the jobs' frontiers, and lines that say it."""
    good = [row for row in read() if row["measured"]]
    errors = [abs(float(row["predicted"]) - float(row["measured"])) for row in good]
    taus = []
    for job in dict.fromkeys(row["job"] for row in good):
        on = [(float(r["predicted"]), float(r["measured"])) for r in good if r["job"] == job and r["plan"].startswith("plan ")]
        if on:
            taus.append(tau([(1.0, 1.0), *on]))
    error, order = statistics.median(errors), statistics.mean(taus or [1.0])
    worst = max(good, key=lambda r: abs(float(r["predicted"]) - float(r["measured"])))
    return error, order, [
        f"{len(good)} rows: median absolute error {100 * error:.1f} points (wanted: at most 5)",
        f"Kendall's tau over the plans of each frontier: {order:.2f} (wanted: at least 0.85)",
        f"worst: {worst['job']} {worst['plan']}: predicted {worst['predicted']}, measured {worst['measured']}"]


def write_page() -> None:
    head = ["job", "plan", "predicted", "measured", "95 % interval"]
    lines = [[r["job"], r["plan"], r["predicted"], r["measured"], f"{r['low']} to {r['high']}"]
             for r in read() if r["measured"]]
    text = [*machine.heading("Predicted against measured time", "python benchmarks/time_model.py"), *summary()[2], "",
            *machine.table(head, lines), ""]
    RESULTS.with_suffix(".md").write_text("\n".join(text))


def main() -> int:
    if "--check" not in sys.argv:
        done = {row["job"] for row in read()}
        for name in JOBS:
            if name not in done:
                add(rows(name))
                write_page()
    error, order, lines = summary()
    print("\n".join(lines))
    return 0 if error <= 0.05 and order >= 0.85 else 1


def add(found: list[dict[str, Any]]) -> None:
    append_rows(RESULTS, FIELDS, found)
    for row in found:
        print({key: value for key, value in row.items() if key != "choices"}, flush=True)


if __name__ == "__main__":
    sys.exit(main())
