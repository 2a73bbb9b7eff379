"""Which strategies there are, which go together, in which order, and a plan's choices onto a job, real or fake."""

from memfit.apply.code import plan_code
from memfit.apply.conflicts import check, conflict
from memfit.apply.onto import apply_choices, plan_fidelity
from memfit.apply.order import ordered
from memfit.apply.registry import strategies, strategy

__all__ = ["apply_choices", "check", "conflict", "ordered", "plan_code", "plan_fidelity", "strategies",
           "strategy"]
