"""Budgets of 80, 60, 40 and 25 % of plain's peak on ten recipes: the run survives under the enforced limit, or plan
says that it cannot be and names the floor; the floor, run as a budget, survives, and 5 % below it there is no plan.

    python benchmarks/budgets.py            run what is missing (resumable); results/budgets.csv
    python benchmarks/budgets.py --check    read the results, print them, exit 1 where something does not hold
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from results_file import append_rows, read_rows

RESULTS = Path(__file__).parent / "results" / "budgets.csv"
SHARES = ("80%", "60%", "40%", "25%")
FIELDS = ["target", "settings", "budget", "budget_bytes", "outcome", "exit_code", "strategies", "peak_bytes",
          "predicted_bytes", "resident_growth_bytes", "allowance_bytes", "floor_bytes", "slowdown_predicted", "took_s"]
STEPS, MIB = 3, 2**20
TARGETS: dict[str, tuple[str, ...]] = {
    "vit-mini": (), "vit-s16": ("batch=8",), "resnet18": ("batch=32",), "resnet50": ("batch=16", "image=160"),
    "mobilenet-v3": ("batch=32", "image=160"), "efficientnet-b0": ("batch=16", "image=160"), "bert-mini": (),
    "gpt-mini": (), "llama-mini": (), "bert-base": ("batch=8",),
}


def memfit(*words: str) -> tuple[int, dict[str, Any]]:
    """Run a command with --json in a fresh process: its exit code and document."""
    result = subprocess.run([sys.executable, "-m", "memfit", *words, "--json"], capture_output=True, text=True)
    try:
        return result.returncode, json.loads(result.stdout)
    except json.JSONDecodeError:
        return result.returncode, {"error": result.stderr[-300:]}


def words(target: str, settings: tuple[str, ...]) -> list[str]:
    """TARGET and its settings on the command line."""
    file = Path(__file__).with_name("targets.py")
    return [f"{file}:steps_only", *(word for one in (f"name={target}", *settings) for word in ("--set", one))]


def cell(target: str, settings: tuple[str, ...], budget: str) -> dict[str, Any]:
    """One budget tried: plan, then train three steps under the limit."""
    began = time.perf_counter()
    code, document = memfit("train", *words(target, settings), "--budget", budget, "--fidelity", "reduced", "--steps",
                            str(STEPS), "--enforce")
    row: dict[str, Any] = {"target": target, "settings": " ".join(settings), "budget": budget, "exit_code": code,
                           "took_s": round(time.perf_counter() - began, 1)}
    if document.get("schema") == "memfit.plan/1":
        return {**row, "outcome": "no plan", "budget_bytes": document["budget"]["device_bytes"],
                "floor_bytes": document["floor_bytes"]}
    if document.get("schema") != "memfit.run/1" or code:
        return {**row, "outcome": "FAILED", "strategies": str(document.get("error", document))[:300]}
    return {**row, **outcome(document)}


def outcome(document: dict[str, Any]) -> dict[str, Any]:
    """A run's document as columns: whether it stayed within tensors and resident memory, under an enforced limit."""
    budget, peak, grown = document["budget_bytes"], document["peak_bytes"], document["rss_peak_bytes"]
    allowed = int(1.10 * budget) + 64 * MIB
    plan = document["plan"]
    return {
        "budget_bytes": budget, "peak_bytes": peak, "resident_growth_bytes": grown, "allowance_bytes": allowed,
        "outcome": "survived" if peak <= budget and grown <= allowed and document["enforced"] else "OVER",
        "predicted_bytes": document["predicted_peak_bytes"], "slowdown_predicted": round(plan["slowdown"], 3),
        "strategies": " + ".join(one["name"] for one in plan["strategies"]) or "plain"}


def floor(target: str, settings: tuple[str, ...]) -> list[dict[str, Any]]:
    """The floor run as a budget, and the budget 5 % below it."""
    code, document = memfit("plan", *words(target, settings), "--budget", "1%", "--fidelity", "reduced")
    if code != 3:
        return [{"target": target, "settings": " ".join(settings), "budget": "floor", "outcome": "FAILED", "exit_code": code,
                 "strategies": str(document.get("error", document))[:300]}]
    lowest = document["floor_bytes"]
    at_floor = {**cell(target, settings, str(lowest)), "budget": "floor", "floor_bytes": lowest}
    below = int(0.95 * lowest)
    code, document = memfit("plan", *words(target, settings), "--budget", str(below), "--fidelity", "reduced")
    return [at_floor, {"target": target, "settings": " ".join(settings), "budget": "95% of floor", "budget_bytes": below,
                       "exit_code": code, "outcome": "no plan" if code == 3 else "PLAN BELOW FLOOR", "floor_bytes": lowest}]


def read() -> list[dict[str, str]]:
    return read_rows(RESULTS)


def add(rows: list[dict[str, Any]]) -> None:
    append_rows(RESULTS, FIELDS, rows)
    for row in rows:
        print({key: value for key, value in row.items() if key != "settings"}, flush=True)


def check() -> int:
    """Print the cells; 1 where one is neither survived nor a stated floor, or fewer than 24 fit."""
    rows = read()
    for row in rows:
        print(f"{row['target']:16s} {row['budget']:>13s} {row['outcome']:10s} {row['strategies'][:60]}")
    cells = [row for row in rows if row["budget"] in SHARES]
    bad = [row for row in rows if row["outcome"] not in ("survived", "no plan")]
    bad += [row for row in rows if row["budget"] == "floor" and row["outcome"] != "survived"]
    fit = sum(row["outcome"] == "survived" for row in cells)
    print(f"{len(cells)} cells, {fit} fit, {len(bad)} bad")
    return 1 if bad or fit < 24 or len(cells) < 32 else 0


def main() -> int:
    if "--check" in sys.argv:
        return check()
    done = {(row["target"], row["budget"]) for row in read()}
    for target, settings in TARGETS.items():
        for share in SHARES:
            if (target, share) not in done:
                add([cell(target, settings, share)])
        if (target, "floor") not in done:
            add(floor(target, settings))
    return check()


if __name__ == "__main__":
    sys.exit(main())
