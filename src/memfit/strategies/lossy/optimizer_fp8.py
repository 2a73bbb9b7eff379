"""Adam's moments in float8 (e4m3): blocks of 256 numbers."""

from __future__ import annotations

from memfit.hooks.moments import ReducedMoments
from memfit.hooks.moments.optimizers import AdamFp8, AdamWFp8

STRATEGY = ReducedMoments("optimizer-fp8", (AdamFp8, AdamWFp8))
