"""Adam's two moments in fewer bytes: how they are coded, the step that reads and writes them, and the optimizer that a job's
own becomes meanwhile. The strategies `optimizer-8bit`, `-4bit`, `-fp8`, `-bf16` and `-factored` share it."""

from memfit.hooks.moments.exchange import exchange, kept_float32, why_not
from memfit.hooks.moments.strategy import ReducedMoments

__all__ = ["ReducedMoments", "exchange", "kept_float32", "why_not"]
