"""Linear layer and cross entropy in chunks of rows: the logits of a large vocabulary never exist as a whole."""

from memfit.strategies.exact.chunked_loss.strategy import STRATEGY, ChunkedLoss

__all__ = ["STRATEGY", "ChunkedLoss"]
