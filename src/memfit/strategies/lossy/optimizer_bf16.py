"""Adam's moments in bfloat16, rounded up or down at random."""

from __future__ import annotations

from memfit.hooks.moments import ReducedMoments
from memfit.hooks.moments.optimizers import AdamBf16, AdamWBf16

STRATEGY = ReducedMoments("optimizer-bf16", (AdamBf16, AdamWBf16))
