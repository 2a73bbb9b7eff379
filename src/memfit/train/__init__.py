"""A plan applied to a job: sessions, the loop, checkpoints and resume, and the process that trains under a limit."""

from memfit.train.loop import LoopSettings, train
from memfit.train.session import Session, StepOutput

__all__ = ["LoopSettings", "Session", "StepOutput", "train"]
