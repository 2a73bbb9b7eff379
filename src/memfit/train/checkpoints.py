"""Checkpoints of a run: whole or not there at all, and loaded tensor by tensor.

    RUN/checkpoints/step-00000012/model.safetensors       the model's state_dict, readable anywhere
                                 /optimizer.safetensors   the optimizer's tensors, in their own dtypes
                                 /rest.pt                 optimizer skeleton, scheduler, random generators, loss scale
                                 /checkpoint.json         where the run was, and what it belongs to
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import memfit
from memfit.core.errors import UsageError
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.jobs.identity import model_hash
from memfit.jobs.randomness import random_state, set_random_state
from memfit.train.identity import check_choices, plan_hash
from memfit.train.model_state import read_model, write_model
from memfit.train.optimizer_state import restore, state_of
from memfit.train.tensor_files import TensorFile, write_tensors

_NAME = re.compile(r"step-(\d{8,})")
_SCHEMA = "memfit.checkpoint/1"


@dataclass(frozen=True)
class Place:
    """Where a run is: steps done, the epoch it is in (from 0), batches of that epoch used, and the generators'
    state when the epoch began (its order was drawn from it)."""

    step: int = 0
    epoch: int = 0
    position: int = 0


def save_checkpoint(
    run: Path, job: Job, place: Place, choices: Sequence[Choice], epoch_state: Mapping[str, Any] | None = None,
    *, keep: int = 2,
) -> Path:
    """Write a checkpoint beside, rename it, and remove all but the newest `keep`. Raises UsageError if it cannot."""
    folder = run / "checkpoints"
    final = folder / f"step-{place.step:08d}"
    beside = folder / f".{final.name}.{os.getpid()}"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        _write(beside, job, place, choices, epoch_state)
        if final.exists():
            shutil.rmtree(final)
        os.replace(beside, final)
        _sync(folder)
    except OSError as error:
        raise UsageError(f"cannot write a checkpoint to {folder}: {error.strerror or error}",
                         "choose another folder with --out, or make room; the checkpoint before is whole") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for old in checkpoints(run)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoints(run: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    try:
        found = [path for path in (run / "checkpoints").iterdir() if _NAME.fullmatch(path.name)]
    except OSError:
        return []
    return sorted((path for path in found if (path / "checkpoint.json").is_file()), key=lambda path: path.name)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that `path` names: itself, or the newest of a run's folder. Raises UsageError if there is none."""
    if (path / "checkpoint.json").is_file():
        return path
    found = checkpoints(path)
    if not found:
        raise UsageError(f"{path} has no checkpoint", "give the folder that was the run's --out")
    return found[-1]


def run_of(checkpoint: Path) -> Path:
    """The run's folder that a checkpoint lies in."""
    return checkpoint.resolve().parent.parent


def read_about(checkpoint: Path) -> dict[str, Any]:
    """What `checkpoint.json` says. Raises UsageError if it is damaged or of another version."""
    try:
        about = json.loads((checkpoint / "checkpoint.json").read_text())
    except (OSError, ValueError):
        raise UsageError(f"{checkpoint} is not a whole checkpoint", "resume from another one") from None
    if not isinstance(about, dict) or about.get("schema") != _SCHEMA:
        raise UsageError(f"{checkpoint} was written by another version of memfit", f"this one reads {_SCHEMA}")
    return about


def load_checkpoint(
    checkpoint: Path, job: Job, choices: Sequence[Choice]
) -> tuple[Place, dict[str, Any] | None, list[str]]:
    """Fill the job (its plan applied) with what was saved; gives the place, the generators' state when its epoch
    began, and notes. Needs no more memory than the run: tensors are read into place, one at a time.

    Raises UsageError if the checkpoint is another model's, or its plan kept other states.
    """
    about = read_about(checkpoint)
    if about["model_hash"] != model_hash(job.model):
        raise UsageError(f"the checkpoint in {checkpoint} is of another model (parameters {about['model_hash']}, "
                         f"this one has {model_hash(job.model)})", "resume with the TARGET and settings of that run")
    notes = check_choices([Choice(one["name"], one["settings"]) for one in about["plan"]], choices)
    read_model(checkpoint / "model.safetensors", checkpoint / "rest.pt", job.model)
    rest = _load_rest(checkpoint)
    restore(job.optimizer, job.model, rest["optimizer"], TensorFile(checkpoint / "optimizer.safetensors"))
    if rest["scheduler"] is not None and job.scheduler is not None:
        job.scheduler.load_state_dict(rest["scheduler"])
    job.rules.load(rest.get("rules", {}))
    set_random_state(rest["random"])
    return Place(**about["place"]), rest["epoch_random"], notes


def _write(
    folder: Path, job: Job, place: Place, choices: Sequence[Choice], epoch_state: Mapping[str, Any] | None
) -> None:
    others = write_model(folder / "model.safetensors", job.model)
    state = state_of(job.optimizer, job.model)
    write_tensors(folder / "optimizer.safetensors", state.tensors)
    scheduler = job.scheduler.state_dict() if job.scheduler is not None else None
    torch.save({"optimizer": state.skeleton, "scheduler": scheduler, "random": random_state(),
                "epoch_random": None if epoch_state is None else dict(epoch_state), "model": others,
                "rules": job.rules.state()},
               folder / "rest.pt")
    about = {"schema": _SCHEMA, "place": asdict(place), "model_hash": model_hash(job.model),
             "plan_hash": plan_hash(choices),
             "plan": [{"name": one.name, "settings": dict(one.settings)} for one in choices],
             "target": job.name, "memfit_version": memfit.__version__, "torch_version": torch.__version__}
    (folder / "checkpoint.json").write_text(json.dumps(about, indent=2) + "\n")
    for path in folder.iterdir():
        _sync(path)
    _sync(folder)


def _load_rest(checkpoint: Path) -> dict[str, Any]:
    try:
        return torch.load(checkpoint / "rest.pt", weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file shows in many ways
        raise UsageError(f"{checkpoint / 'rest.pt'} cannot be read: {str(error).splitlines()[0][:200]}",
                         "resume from another checkpoint") from None


def _sync(path: Path) -> None:
    """What was renamed must be on the disk before its name is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
