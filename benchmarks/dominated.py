"""Five jobs whose memory is mostly one thing, at 50 and 25 % of plain's peak: a plan, three steps of it under the enforced
limit, and what the plan says that dominates.

    python benchmarks/dominated.py            run what is missing (resumable); results/dominated.csv and .md
    python benchmarks/dominated.py --check    read the results, print them, exit 1 where something does not hold
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import machine
from budgets import memfit, outcome
from results_file import append_rows, read_rows

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "dominated.csv"
JOBS = {"states": "parameters, gradients and optimizer states", "logits": "logits", "attention": "attention weights",
        "dropout": "", "activations": "activations"}
SHARES = ("50%", "25%")
FIELDS = ["job", "budget", "outcome", "strategies", "fidelity", "budget_bytes", "peak_bytes", "predicted_bytes",
          "resident_growth_bytes", "allowance_bytes", "slowdown_predicted", "floor_bytes", "says", "took_s"]


def cell(job: str, budget: str) -> dict[str, Any]:
    """One job under one budget; in lower precision, where nothing that keeps the result fits."""
    began = time.perf_counter()
    words = ("train", f"{HERE / 'dominated_jobs.py'}:{job}", "--budget", budget, "--steps", "3", "--enforce")
    code, document = memfit(*words)
    row: dict[str, Any] = {"job": job, "budget": budget}
    if code == 3:
        row["floor_bytes"] = document["floor_bytes"]
        code, document = memfit(*words, "--fidelity", "reduced")
    if document.get("schema") == "memfit.run/1" and not code:
        plan = document["plan"]
        row |= {**outcome(document), "fidelity": plan["fidelity"]}
    elif document.get("schema") == "memfit.plan/1":
        plan = document
        row |= {"outcome": "no plan", "floor_bytes": plan["floor_bytes"], "budget_bytes": plan["budget"]["device_bytes"]}
    else:
        return {**row, "outcome": "FAILED", "says": str(document.get("error", document))[:300]}
    says = next((note for note in plan["notes"] if note.startswith("plain's peak is mostly")), "")
    return {**row, "says": says, "took_s": round(time.perf_counter() - began, 1)}


def write_table() -> None:
    rows = read_rows(RESULTS)
    lines = machine.heading("Jobs whose memory is mostly one thing", "python benchmarks/dominated.py")
    head = ("job", "budget", "outcome", "strategies", "result", "peak MiB", "budget MiB", "predicted time", "says")
    cells = [(row["job"], row["budget"], row["outcome"], row["strategies"], row["fidelity"], _mib(row["peak_bytes"]),
              _mib(row["budget_bytes"]), row["slowdown_predicted"], row["says"]) for row in rows]
    RESULTS.with_suffix(".md").write_text("\n".join([*lines, *machine.table(head, cells)]) + "\n")


def _mib(text: str) -> str:
    return f"{int(text) / 2**20:.1f}" if text else ""


def check() -> int:
    """Print the cells; 1 where one did not survive or does not say what dominates."""
    rows = read_rows(RESULTS)
    for row in rows:
        print(f"{row['job']:12s} {row['budget']:>4s} {row['outcome']:9s} {row['strategies'][:60]:60s} {row['says']}")
    bad = [row for row in rows if row["outcome"] != "survived" or JOBS[row["job"]] not in row["says"] or not row["says"]]
    print(f"{len(rows)} cells, {len(bad)} bad")
    return 1 if bad or len(rows) < len(JOBS) * len(SHARES) else 0


def main() -> int:
    if "--check" in sys.argv:
        return check()
    done = {(row["job"], row["budget"]) for row in read_rows(RESULTS)}
    for job in JOBS:
        for budget in SHARES:
            if (job, budget) not in done:
                row = cell(job, budget)
                append_rows(RESULTS, FIELDS, [row])
                print(row, flush=True)
                write_table()
    return check()


if __name__ == "__main__":
    sys.exit(main())
