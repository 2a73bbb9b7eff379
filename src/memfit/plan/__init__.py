"""The fastest mix of strategies that fits a budget, with reasons, floor and frontier."""

from memfit.plan.files import read_plan, write_plan
from memfit.plan.make import estimate_job, make_plan

__all__ = ["estimate_job", "make_plan", "read_plan", "write_plan"]
