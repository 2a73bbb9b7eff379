"""What a prediction for a card has to say besides its numbers."""

from __future__ import annotations

from memfit.core.device import Device
from memfit.core.trace import Kind, Op, Trace
from memfit.core.units import MIB
from memfit.hardware.cudnn import answering
from memfit.simulate.cuda_prediction import CudaPrediction
from memfit.simulate.cuda_steps import RanOut

_WORTH_A_NOTE = 0.05


def cuda_notes(seen: CudaPrediction, device: Device) -> tuple[str, ...]:
    """Running out, fragmentation, where the workspaces come from, and settings that change nothing."""
    notes: list[str] = []
    if seen.ran_out is not None:
        notes.append(_ran_out(seen, seen.ran_out, device))
    elif not seen.fits:
        notes.append(f"it may run out of memory on {device.name}: at the upper end of the prediction there is no room")
    used = seen.steps[seen.highest].fragmentation
    idle = max(0, used.idle_bytes)
    if idle > _WORTH_A_NOTE * used.reserved_bytes:
        notes.append(f"at the peak {_mib(idle)} of {_mib(used.reserved_bytes)} reserved are free, "
                     f"in {used.free_blocks} blocks, the largest of {_mib(used.largest_free_bytes)}")
    if any(op.workspace is not None and op.name.startswith("conv") for op in seen.traces[0].ops):
        notes.append(f"workspaces of convolutions: {answering(device)}; a smaller one is taken where memory is short")
    return (*notes, *seen.settings.notes)


def _ran_out(seen: CudaPrediction, where: RanOut, device: Device) -> str:
    op = _operator(seen.traces[where.step], where.event)
    place = ", ".join(part for part in (op.phase, op.module, op.name) if part) if op is not None else "what is there before it"
    steady_only = seen.traces[0] is seen.traces[-1]
    step = "a step" if steady_only else "the first step" if where.step == 0 else "a later step"
    error = where.error
    return (f"runs out of memory on {device.name} in {step}: {place} asks for {_mib(error.requested_bytes)} "
            f"with {_mib(error.reserved_bytes)} in use, {_mib(max(0, error.short_bytes))} too much")


def _operator(trace: Trace, event: int) -> Op | None:
    for kind, index in trace.events[max(0, event):]:
        if kind == Kind.OP:
            return trace.ops[index]
    return None


def _mib(size: int) -> str:
    return f"{size / MIB:.0f} MiB"
