"""Adam's moments in 4 bit: blocks of 128 numbers."""

from __future__ import annotations

from memfit.hooks.moments import ReducedMoments
from memfit.hooks.moments.optimizers import Adam4bit, AdamW4bit

STRATEGY = ReducedMoments("optimizer-4bit", (Adam4bit, AdamW4bit))
