"""Child processes with the allocator settled and the limit set. No torch."""

from memfit.launch.allocator import allocator_here, find_mimalloc, settled_environment, settling_note
from memfit.launch.children import MEASURING, WorkerResult, run_worker
from memfit.launch.deaths import looks_out_of_memory
from memfit.launch.events import emit
from memfit.launch.exec import run_exec
from memfit.launch.generated_code import GeneratedCode
from memfit.launch.limited import EXACT_NOTE, run_limited
from memfit.launch.limits import (
    ProcessMemory,
    allowance,
    can_enforce,
    lift_data_limit,
    limit_growth,
    process_memory,
    set_data_limit,
)
from memfit.launch.quiet import quiet_imports
from memfit.launch.sampler import ResidentSampler, resident_bytes
from memfit.launch.worker import worker_main

__all__ = [
    "EXACT_NOTE",
    "MEASURING",
    "GeneratedCode",
    "ProcessMemory",
    "ResidentSampler",
    "WorkerResult",
    "allocator_here",
    "allowance",
    "can_enforce",
    "emit",
    "find_mimalloc",
    "lift_data_limit",
    "limit_growth",
    "looks_out_of_memory",
    "process_memory",
    "quiet_imports",
    "resident_bytes",
    "run_exec",
    "run_limited",
    "run_worker",
    "set_data_limit",
    "settled_environment",
    "settling_note",
    "worker_main",
]
