"""Recipes as benchmarks want them: without the evaluation at the end of a run, which takes longer than the steps."""

from __future__ import annotations

from typing import Any

import memfit.recipes.text
import memfit.recipes.vision  # noqa: F401 - libraries are imported with the target's file, before any limit is set
from memfit.jobs import Job
from memfit.recipes import recipe


def steps_only(name: str, **settings: Any) -> Job:
    """The recipe of that name, to be trained only."""
    job = recipe(name, **settings)
    job.evaluate = None
    return job
