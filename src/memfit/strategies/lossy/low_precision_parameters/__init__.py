"""Parameters in bfloat16, whose small updates are not lost: rounded at random, or with what was rounded off beside them."""

from memfit.strategies.lossy.low_precision_parameters.strategy import STRATEGY, LowPrecisionParameters

__all__ = ["STRATEGY", "LowPrecisionParameters"]
