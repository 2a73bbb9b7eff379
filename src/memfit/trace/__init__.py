"""A job's training step as storages being born and dying: traced on fake tensors, with no memory and no device."""

from memfit.trace.fakes import FakeWorld, fake_job
from memfit.trace.steps import Traces, trace_job, trace_step

__all__ = ["FakeWorld", "Traces", "fake_job", "trace_job", "trace_step"]
