"""Measuring what really happened: tensor peaks by the profiler, resident memory by the system, this machine's rates."""
