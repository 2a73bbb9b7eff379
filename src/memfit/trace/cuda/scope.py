"""Everything that makes a trace one of a CUDA card, entered together and left together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from memfit.trace.cuda import attention, cells, composites, devices, recurrent
from memfit.trace.cuda.autocast import cuda_autocast
from memfit.trace.cuda.inference import inference_as_no_grad
from memfit.trace.cuda.optimizers import cuda_optimizers
from memfit.trace.cuda.registering import overriding
from memfit.trace.cuda.target import CudaTarget

_entered: list[CudaTarget] = []


@contextmanager
def cuda_semantics(target: CudaTarget | None) -> Iterator[None]:
    """Inside, operators on fake tensors act as on the target; None changes nothing. May be nested for one target.

    Everything is as before when left: the process is the user's.
    """
    if target is None or (_entered and _entered[-1] == target):
        yield
        return
    _entered.append(target)
    try:
        with ExitStack() as stack:
            overrides = stack.enter_context(overriding())
            stack.enter_context(cuda_autocast(overrides))  # first: it asks which operators the CPU's autocast has of its own
            composites.register(overrides, target)
            attention.register(overrides, target)
            recurrent.register(overrides, target)
            cells.register(overrides)
            devices.register(overrides)
            for entered in (cuda_optimizers(), devices.no_driver_needed(), inference_as_no_grad()):
                stack.enter_context(entered)
            yield
    finally:
        _entered.pop()
