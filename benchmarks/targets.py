"""Recipes as benchmarks want them: without the evaluation at the end of a run, which takes longer than the steps."""

from __future__ import annotations

from typing import Any

from memfit.jobs import Job
from memfit.recipes import recipe


def steps_only(name: str, **settings: Any) -> Job:
    """The recipe of that name, to be trained only."""
    job = recipe(name, **settings)
    job.evaluate = None
    return job
