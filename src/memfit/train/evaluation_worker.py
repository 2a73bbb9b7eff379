"""`python -m memfit.train.evaluation_worker SPEC.json`: the job's evaluation under a limit, without a graph.

The spec: `target`, `settings`, `seed`, `budget_bytes` (None: no limit), `exact`; and, each may be left out, `collect` (`host`
or a file) with `samples`, `graph` (whether to run one batch with a graph) and `pairs` (convolutions and normalisations to
fold). The result is a `memfit.evaluation/1`: `target`, `metrics`, `rss_peak_bytes` (growth above the warm process),
`budget_bytes`, `within_budget` (null without a budget), `enforced`, `took_s`, `notes`; `measured` and `folding` are of one
batch, after the limit was lifted; `collected_shape` is null where nothing was.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from memfit.core.errors import UsageError
from memfit.jobs import Job
from memfit.jobs.randomness import seed_everything
from memfit.jobs.targets import call_target
from memfit.launch import EXACT_NOTE, allowance, emit, worker_main
from memfit.recipes import prepare
from memfit.train.enclosure import enclosed
from memfit.train.evaluating import collect, measured_batch, measured_folding
from memfit.train.failures import told_to_user
from memfit.train.session import Session


def work(spec: dict[str, Any]) -> Mapping[str, Any]:
    """Evaluate as the spec says; the payload of the `result` event."""
    function = prepare(spec["target"])
    budget_bytes = spec.get("budget_bytes")
    with enclosed(budget_bytes, enforce=budget_bytes is not None) as enclosure:
        emit("warm", limit_bytes=enclosure.limit_bytes)
        seed_everything(int(spec.get("seed", 0)))
        with told_to_user(spec["target"]):
            job = call_target(function, spec.get("settings") or {}, spec["target"])
        if job.evaluate is None:
            raise UsageError(f"{spec['target']} has no evaluation",
                             "give its Job evaluate=function(model) -> dict of floats")
        began = time.perf_counter()
        with Session(job, (), profile_peaks=False) as session, enclosure.sparing_code(job.model):
            metrics = session.evaluate()
            shape = _collected(job, spec)
        took_s = time.perf_counter() - began
        enclosure.end()
        found = _one_batch(job, spec)
    growth_bytes = enclosure.growth_bytes
    return {"evaluation": {
        "schema": "memfit.evaluation/1", "target": spec["target"], "metrics": metrics,
        "rss_peak_bytes": growth_bytes, "budget_bytes": budget_bytes,
        "within_budget": None if budget_bytes is None else growth_bytes <= allowance(budget_bytes),
        "enforced": enclosure.enforced, "took_s": took_s, "notes": [EXACT_NOTE] if spec.get("exact") else [],
        "collected_shape": shape, **found}}


def _collected(job: Job, spec: Mapping[str, Any]) -> list[int] | None:
    if spec.get("collect") is None:
        return None
    with told_to_user(spec["target"]):
        return list(collect(job, int(spec["samples"]), spec["collect"]))


def _one_batch(job: Job, spec: Mapping[str, Any]) -> dict[str, Any]:
    with told_to_user(spec["target"]):
        measured = measured_batch(job, graph=bool(spec.get("graph")))
        folding = measured_folding(job, [(one, other) for one, other in spec["pairs"]]) if spec.get("pairs") else None
    return {"measured": measured, "folding": folding}


if __name__ == "__main__":
    sys.exit(worker_main(work))
