"""What `compile` does to five recipes: operators, peak, step time, compile time, graphs; and what fusion and constant folding
each give.

    python benchmarks/compiled.py            run what is missing (resumable); results/compiled.csv and .md
    python benchmarks/compiled.py --check    read the results, print them, exit 1 where a peak was predicted more than 2 % off

Each row is a fresh process, with caches of its own. `no fusion` compiles every operator into a kernel of its own, `no folding`
leaves out the folding of constants in the graph.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import machine
from results_file import append_rows, read_rows

RESULTS = Path(__file__).parent / "results" / "compiled.csv"
RECIPES: dict[str, dict[str, Any]] = {
    "vit-mini": {"batch": 128}, "bert-mini": {}, "gpt-mini": {}, "llama-mini": {}, "resnet18": {"batch": 16, "image": 96}}
SIDES = ("plain", "compile", "no fusion", "no folding")
FIELDS = ["recipe", "side", "operators", "predicted_bytes", "peak_bytes", "step_s", "compile_s", "graphs",
          "graphs_other_batch", "first_loss", "note"]
STEPS = 9


def side(recipe: str, which: str) -> dict[str, Any]:
    """One recipe on one side, measured in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        done = subprocess.run([sys.executable, __file__, "--side", recipe, which], capture_output=True, text=True, env=env)
    if done.returncode:
        return {"recipe": recipe, "side": which, "note": done.stderr.strip().splitlines()[-1][:200]}
    return {"recipe": recipe, "side": which, **json.loads(done.stdout.splitlines()[-1])}


def run_side(recipe: str, which: str) -> dict[str, Any]:
    import torch._inductor.config as inductor
    from torch._dynamo.utils import counters

    from memfit.core.strategy import Choice
    from memfit.plan.explore import Candidate, Explorer
    from memfit.recipes import load
    from memfit.strategies.exact.compile import blocks
    from memfit.train import Session

    job = load(recipe, RECIPES[recipe])
    choices = [] if which == "plain" else [Choice("compile", {"modules": blocks(job.model)})]
    with ExitStack() as stack:
        if which == "no fusion":
            stack.enter_context(inductor.patch(max_fusion_size=1, realize_opcount_threshold=0, realize_reads_threshold=0))
        if which == "no folding":
            stack.enter_context(inductor.patch(joint_graph_constant_folding=False))
        seen = Explorer(job, "cpu").candidate(choices)
        assert isinstance(seen, Candidate), seen
        counters.clear()
        with Session(job, choices) as session:
            times, peak, losses = [], 0, []
            for _ in range(STEPS):
                began = time.perf_counter()
                out = session.step()
                times.append(time.perf_counter() - began)
                peak, losses = out.peak_bytes, [*losses, out.loss]
            step_s = statistics.median(times[2:])
            graphs = counters["stats"]["unique_graphs"]
            from memfit.jobs import batches

            for count in (2, 4, 2):
                session.step(batches.split(job.batch, count)[0])
    kernels = [op for op in seen.trace.ops if not op.name.startswith("empty")]
    return {"operators": len(kernels), "predicted_bytes": seen.simulation.peak.allocated_bytes, "peak_bytes": peak,
            "step_s": round(step_s, 4), "compile_s": round(max(times[0] - step_s, 0.0), 2) if choices else "",
            "graphs": graphs, "graphs_other_batch": counters["stats"]["unique_graphs"] - graphs, "first_loss": losses[0]}


def write_table(rows: list[dict[str, str]]) -> None:
    lines = machine.heading("What compiling blocks does", "python benchmarks/compiled.py")
    head = ("recipe", "side", "operators", "peak MiB", "predicted", "step s", "of plain", "first step's extra s", "graphs",
            "for other batches")
    plain = {row["recipe"]: row for row in rows if row["side"] == "plain"}
    cells = []
    for row in rows:
        if row["note"]:
            cells.append((row["recipe"], row["side"], row["note"], *[""] * 7))
            continue
        other = plain[row["recipe"]]
        cells.append((row["recipe"], row["side"], row["operators"], f"{int(row['peak_bytes']) / 2**20:.1f}",
                      f"{int(row['predicted_bytes']) / 2**20:.1f}", row["step_s"],
                      f"{float(row['step_s']) / float(other['step_s']):.2f}", row["compile_s"], row["graphs"],
                      row["graphs_other_batch"]))
    RESULTS.with_suffix(".md").write_text("\n".join([*lines, *machine.table(head, cells)]) + "\n")


def check() -> int:
    rows = read_rows(RESULTS)
    bad = 0
    for row in rows:
        off = abs(int(row["predicted_bytes"]) / int(row["peak_bytes"]) - 1) if row["peak_bytes"] else 1.0
        bad += off > 0.02
        print(f"{row['recipe']:11s} {row['side']:10s} {row['operators']:>5s} operators, peak {off:.3%} off, {row['step_s']} s, "
              f"compiling {row['compile_s'] or '-'} s, {row['graphs']} graphs {row['note']}")
    print(f"{len(rows)} rows, {bad} bad")
    return 1 if bad or len(rows) < len(RECIPES) * len(SIDES) else 0


def main() -> int:
    if "--side" in sys.argv:
        print(json.dumps(run_side(*sys.argv[2:4])))
        return 0
    if "--check" in sys.argv:
        return check()
    done = {(row["recipe"], row["side"]) for row in read_rows(RESULTS)}
    for recipe in RECIPES:
        for which in SIDES:
            if (recipe, which) not in done:
                row = side(recipe, which)
                append_rows(RESULTS, FIELDS, [row])
                print(row, flush=True)
                write_table(read_rows(RESULTS))
    return check()


if __name__ == "__main__":
    sys.exit(main())
