"""The job, its batches and weights, and the training step that trace, train and prove all call."""

from memfit.jobs.job import Job
from memfit.jobs.rules import StepRules
from memfit.jobs.step import run_step

__all__ = ["Job", "StepRules", "run_step"]
