"""A trace on a device: peaks, timeline, time. The only place that computes a peak. No torch."""

from memfit.simulate.clock import op_seconds, step_seconds
from memfit.simulate.simulation import Simulation, peak_of, simulate

__all__ = ["Simulation", "op_seconds", "peak_of", "simulate", "step_seconds"]
