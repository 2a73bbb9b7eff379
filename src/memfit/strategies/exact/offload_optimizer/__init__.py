"""Optimizer states live on disk or on the host, not on the device."""

from memfit.strategies.exact.offload_optimizer.strategy import STRATEGY, OffloadOptimizer

__all__ = ["STRATEGY", "OffloadOptimizer"]
