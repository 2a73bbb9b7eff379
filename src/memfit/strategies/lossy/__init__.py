"""Strategies that change the arithmetic or the model."""
