"""Training curves under strategies that give reduced results, beside plain's and beside those of other seeds.

    python benchmarks/reduced_curves.py                        what results/reduced_curves.csv lacks; it can be cut short
    python benchmarks/reduced_curves.py --strategies autocast optimizer-8bit --recipes vit-mini --seeds 0 1
    python benchmarks/reduced_curves.py --table                only writes results/reduced_curves.md from the rows

Every run of a recipe and a seed starts from the same weights, sees the same batches in the same order, and draws the same
dropout. `loss_end` is the mean training loss of the last 50 steps, `curve` that of each thirtieth of the run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from machine import heading, table
from memfit.apply import strategies
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.jobs.randomness import seed_everything
from memfit.plan.explore import Explorer
from memfit.recipes import load
from memfit.train.session import Session
from results_file import append_rows, read_rows

RESULTS = Path(__file__).parent / "results" / "reduced_curves.csv"
FIELDS = ("recipe", "settings", "strategy", "choice", "seed", "steps", "loss_start", "loss_end", "curve", "seconds", "torch")
RECIPES: dict[str, dict[str, Any]] = {  # small batches, so that 300 steps do not learn the data by heart
    "vit-mini": {"batch": 32, "lr": 1e-4},
    "bert-mini": {"batch": 8, "seq": 64, "task": "mlm"},
    "gpt-mini": {"batch": 4, "seq": 128},
}
PLAIN = "plain"
LAST, PARTS, STEPS = 50, 30, 300


@cache
def explorer(recipe: str) -> Explorer:
    return Explorer(load(recipe, RECIPES[recipe]), "cpu")


def choice_of(name: str, recipe: str) -> Choice | None:
    """The strategy with the first settings that it proposes for the recipe; None where it does not serve it."""
    seen, one = explorer(recipe), strategies()[name]
    if one.excluded(seen.fake, seen.device):
        return None
    options = one.choices(seen.fake, seen.plain.trace, seen.device)
    return Choice(name, dict(options[0])) if options else None


def lossy(recipe: str) -> list[str]:
    """The strategies whose results are reduced or adapted for the recipe."""
    found = [choice for name in strategies() if (choice := choice_of(name, recipe)) is not None]
    kinds = {one.name: strategies()[one.name].fidelity(explorer(recipe).fake, one.settings) for one in found}
    return [name for name, kind in kinds.items() if kind in (Fidelity.REDUCED, Fidelity.ADAPTED)]


def batches(job: Job, steps: int) -> Iterator[Any]:
    data: Any = job.data
    return itertools.islice(itertools.chain.from_iterable(data(epoch) for epoch in itertools.count()), steps)


def losses(recipe: str, choice: Choice | None, seed: int, steps: int) -> list[float]:
    """The training loss of every step."""
    job = load(recipe, {**RECIPES[recipe], "seed": seed})
    with Session(job, [choice] if choice else [], profile_peaks=False) as session:
        seed_everything(seed)
        return [session.step(batch).loss for batch in batches(job, steps)]


def row(recipe: str, name: str, seed: int, steps: int) -> dict[str, Any]:
    choice = None if name == PLAIN else choice_of(name, recipe)
    began = time.perf_counter()
    seen = losses(recipe, choice, seed, steps)
    part = max(1, steps // PARTS)
    curve = [statistics.fmean(seen[start:start + part]) for start in range(0, steps, part)]
    return {"recipe": recipe, "settings": json.dumps(RECIPES[recipe]), "strategy": name,
            "choice": json.dumps(dict(choice.settings) if choice else {}), "seed": seed, "steps": steps,
            "loss_start": f"{seen[0]:.6f}", "loss_end": f"{statistics.fmean(seen[-LAST:]):.6f}",
            "curve": " ".join(f"{mean:.4f}" for mean in curve), "seconds": f"{time.perf_counter() - began:.1f}",
            "torch": torch.__version__}


def lacking(given: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Runs without a row yet; every strategy with one seed before the next."""
    known = {(one["recipe"], one["settings"], one["strategy"], int(one["seed"]), int(one["steps"]))
             for one in read_rows(RESULTS)}
    for seed, recipe in itertools.product(given.seeds, given.recipes):
        for name in [PLAIN, *(given.strategies or lossy(recipe))]:
            if (recipe, json.dumps(RECIPES[recipe]), name, seed, given.steps) not in known:
                yield recipe, name, seed


def summary(rows: Iterable[dict[str, str]]) -> list[list[str]]:
    """For each job and strategy: how far the ends lie from plain's of the same seed, and plain's own spread."""
    ends: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for one in rows:
        if int(one["steps"]) >= STEPS:
            ends[one["recipe"], one["settings"], one["strategy"]][one["seed"]] = float(one["loss_end"])
    told = []
    for (recipe, settings, name), found in sorted(ends.items()):
        plain = ends.get((recipe, settings, PLAIN), {})
        seeds = sorted(set(found) & set(plain))
        if name != PLAIN and seeds:
            apart = [found[seed] / plain[seed] - 1 for seed in seeds]
            told.append([recipe, f"`{settings}`", name, len(seeds), f"{statistics.fmean(plain.values()):.4f}",
                         f"{100 * statistics.fmean(apart):+.2f} %", f"{100 * max(apart, key=abs):+.2f} %", _spread(plain)])
    return told


def _spread(plain: dict[str, float]) -> str:
    ends = plain.values()
    return f"{100 * (max(ends) - min(ends)) / statistics.fmean(ends):.1f} %" if len(ends) > 1 else "one seed"


def write_table() -> None:
    head = ("recipe", "settings", "strategy", "seeds", "plain's last loss", "mean difference", "largest", "plain's seeds apart")
    told = ("Differences of the mean training loss of the last 50 of 300 steps, against plain of the same seed; "
            "`plain's seeds apart` is the distance from plain's best to its worst seed.")
    lines = [*heading("Training curves under reduced results", "python benchmarks/reduced_curves.py"), told, "",
             *table(head, summary(read_rows(RESULTS)))]
    RESULTS.with_suffix(".md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--strategies", nargs="+", help="by name; all lossy ones if left out")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--table", action="store_true", help="train nothing")
    given = parser.parse_args()
    if not given.table:
        for run in lacking(given):
            made = row(*run, given.steps)
            append_rows(RESULTS, FIELDS, [made])
            print(f"{made['recipe']:10s} {made['strategy']:22s} seed {made['seed']}: {made['loss_start']} -> "
                  f"{made['loss_end']} in {made['seconds']} s", flush=True)
    write_table()


if __name__ == "__main__":
    main()
