"""The sides of `plan_code.py` that have memfit: making the plan and its code, and training the plan's session.

    python benchmarks/plan_code_session.py make FOLDER       reads case.json; writes plan.toml, plan.py, job.pickle
    python benchmarks/plan_code_session.py train FOLDER      reads case.json and plan.toml; writes session.pt
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from memfit.apply import plan_code
from memfit.jobs import Job
from memfit.plan import make_plan, read_plan, write_plan
from memfit.recipes import load
from memfit.train import Session
from plan_code_steps import trained

STEPS = 3


def make(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Plan the case. Where the plan has a plain form: its code, and the job pickled so that memfit is not needed."""
    job = load(case["target"], case["settings"])
    plan = make_plan(job, budget=case["budget"], fidelity=case["fidelity"], target=case["target"])
    names = " + ".join(one.name for one in plan.strategies) or "plain"
    if not plan.fits:
        return {"form": "no plan"}
    write_plan(plan, folder / "plan.toml")
    (folder / "plan.py").write_text(plan.code())
    assert plan.code() == plan_code(Session(job, plan).choices, job), "a fake job's code is the real job's"
    form = "plain" if "def make_step(model, loss, optimizer):" in plan.code() else "needs memfit"
    return {"form": form, "strategies": names, "fidelity": plan.fidelity, "budget_bytes": plan.budget.device_bytes,
            "predicted_bytes": plan.predicted.peak.allocated_bytes, "code_lines": plan.code().count("\n"),
            "plain_bytes": plan.baseline.peak.allocated_bytes}


def ship(folder: Path, case: dict[str, Any]) -> None:
    """The job's parts as they are before training; memfit's functions travel by value."""
    job = load(case["target"], case["settings"])
    cloudpickle.register_pickle_by_value(sys.modules["memfit"])
    parts = {"model": job.model, "loss": job.loss, "optimizer": job.optimizer, "batches": batches(job)}
    (folder / "job.pickle").write_bytes(cloudpickle.dumps(parts))


def batches(job: Job) -> list[Any]:
    """The first batches of the job's data."""
    data: Any = job.data
    return list(itertools.islice(data(0), STEPS))


def train(folder: Path, case: dict[str, Any]) -> None:
    job = load(case["target"], case["settings"])
    given = batches(job)
    session = Session(job, read_plan(folder / "plan.toml"), profile_peaks=False)
    torch.save(trained(lambda batch: session.step(batch).loss_tensor, job.model, job.optimizer, given),
               folder / "session.pt")


def main(what: str, folder: Path) -> None:
    torch.set_num_threads(2)
    case = json.loads((folder / "case.json").read_text())
    if what == "train":
        train(folder, case)
        return
    made = make(folder, case)
    if made["form"] == "plain":
        ship(folder, case)
    (folder / "made.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
