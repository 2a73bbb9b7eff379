"""What autograd saves in fewer bytes: masks as bits, indices in the smallest type, other numbers in 8 or 4 bits."""

from memfit.strategies.exact.compress_activations.strategy import STRATEGY, CompressActivations

__all__ = ["STRATEGY", "CompressActivations"]
