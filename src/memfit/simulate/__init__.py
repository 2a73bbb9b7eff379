"""A trace on a device: peaks, timeline, time. The only place that computes a peak. No torch."""

from memfit.simulate.clock import again_seconds, op_seconds, phase_seconds, step_seconds
from memfit.simulate.simulation import Simulation, alive_at, peak_of, simulate

__all__ = ["Simulation", "again_seconds", "alive_at", "op_seconds", "peak_of", "phase_seconds", "simulate", "step_seconds"]
