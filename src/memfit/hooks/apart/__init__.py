"""Stepping parameters one by one with the user's own optimizer, and whether that is the same as stepping them together."""

from memfit.hooks.apart.one import plain_step, step_one
from memfit.hooks.apart.separable import why_coupled

__all__ = ["plain_step", "step_one", "why_coupled"]
