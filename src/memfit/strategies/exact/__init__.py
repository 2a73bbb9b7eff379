"""Strategies that keep the mathematics: bitwise, another rounding, or other random draws."""
