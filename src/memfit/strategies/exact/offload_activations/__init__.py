"""Saved tensors wait for backward on disk or on the host, not on the device."""

from memfit.strategies.exact.offload_activations.strategy import STRATEGY, OffloadActivations

__all__ = ["STRATEGY", "OffloadActivations"]
