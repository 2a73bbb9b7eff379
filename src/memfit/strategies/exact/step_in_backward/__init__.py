"""The optimizer steps each parameter as soon as its gradient is there, so that gradients never live together."""

from memfit.strategies.exact.step_in_backward.strategy import STRATEGY, StepInBackward

__all__ = ["STRATEGY", "StepInBackward"]
