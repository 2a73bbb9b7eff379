"""Attention written out (product, softmax, product) as `scaled_dot_product_attention`: the scores never exist as a whole."""

from memfit.strategies.exact.attention.strategy import STRATEGY, Attention

__all__ = ["STRATEGY", "Attention"]
