"""Adafactor in place of Adam: another update rule, whose states are rows and columns."""

from __future__ import annotations

from memfit.core.fidelity import Fidelity
from memfit.hooks.moments import ReducedMoments
from memfit.hooks.moments.factored import AdamFactored, AdamWFactored

_OWN = "Adafactor steps all tensors itself, one at a time"
STRATEGY = ReducedMoments("optimizer-factored", (AdamFactored, AdamWFactored), Fidelity.ADAPTED,
                          conflicts={"fused-step": _OWN, "single-tensor-step": _OWN})
