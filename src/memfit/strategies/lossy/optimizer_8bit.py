"""Adam's moments in 8 bit: blocks of 256 numbers, dynamic levels."""

from __future__ import annotations

from memfit.hooks.moments import ReducedMoments
from memfit.hooks.moments.optimizers import Adam8bit, AdamW8bit

STRATEGY = ReducedMoments("optimizer-8bit", (Adam8bit, AdamW8bit))
