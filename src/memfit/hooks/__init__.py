"""What strategies share: changing a module's forward, recomputing it in backward, and the undo of both."""

from memfit.hooks.batchnorm import frozen_statistics
from memfit.hooks.forward import call_forward, override_forward
from memfit.hooks.recompute import recomputed
from memfit.hooks.source import source

__all__ = ["call_forward", "frozen_statistics", "override_forward", "recomputed", "source"]
