"""A live job sent to fresh processes: pickled by value, its tensors in a file that they map."""

from __future__ import annotations

import importlib
import mmap
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from memfit.core.errors import UsageError
from memfit.jobs import Job, batches

_FILE = "job.pt"
_ADVICE = "prove a target instead: memfit prove path/to/file.py:function, a function that returns the job"


def ship(job: Job, folder: Path) -> dict[str, Any]:
    """Write the job; gives the subject of a worker's spec. Raises UsageError, asking for a target, if it cannot be
    pickled (an open file, a generator as data, a lock)."""
    try:
        import cloudpickle
    except ImportError:
        raise UsageError("proving a live job needs cloudpickle, which is not installed",
                         f"pip install cloudpickle, or {_ADVICE}") from None
    rules, job.rules = job.rules, type(job.rules)()
    try:
        torch.save(job, folder / _FILE, pickle_module=cloudpickle)
    except OSError as error:
        raise UsageError(f"cannot write {folder / _FILE}: {error.strerror or error}",
                         "make room in the temporary folder") from None
    except Exception as error:  # anything in the job may refuse, each in its own words
        words = " ".join(str(error).split())[:200]
        raise UsageError(f"the job cannot be sent to another process: {type(error).__name__}: {words}",
                         _ADVICE) from None
    finally:
        job.rules = rules
    return {"job_file": str(folder / _FILE), "modules": sorted(set(_modules_of(job)))}


def import_modules(names: list[str]) -> None:
    """What unpickling would import is imported before a limit is set."""
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def unship(path: str) -> Job:
    """The job, its tensors mapped (privately: a page becomes memory when it is written to)."""
    torch.serialization.set_default_mmap_options(mmap.MAP_PRIVATE)
    job = torch.load(path, mmap=True, weights_only=False)
    if not isinstance(job, Job):
        raise UsageError(f"{path} holds {type(job).__name__}, not a job", _ADVICE)
    return job


def _modules_of(job: Job) -> Iterator[str]:
    """Importable modules of the classes in the job."""
    model: Any = job.model_source
    optimizer: Any = job.optimizer_source
    kinds: list[Any] = [model, type(model), optimizer, type(optimizer), job.loss, type(job.batch),
                        type(job.scheduler_source)]
    if isinstance(model, torch.nn.Module):
        kinds += [type(module) for module in model.modules()]
    kinds += [type(tensor) for tensor in batches.tensors(job.batch)]
    for kind in kinds:
        name = getattr(kind, "__module__", None)
        if isinstance(name, str) and name != "__main__" and isinstance(sys.modules.get(name), ModuleType):
            yield name
