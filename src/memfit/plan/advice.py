"""What to say when nothing fits: the floor, what stands in the way, and what would lift it."""

from __future__ import annotations

from memfit.core.errors import DoesNotFit
from memfit.core.results import Plan
from memfit.report.format import gib


def does_not_fit(made: Plan) -> DoesNotFit:
    """The error of a plan that does not fit."""
    who, budget = made.target or "the job", gib(made.budget.device_bytes)
    if made.floor_bytes <= made.budget.device_bytes:  # a plan from a file, edited or for other settings
        return DoesNotFit(f"{who} does not fit {budget} with this plan: it needs {gib(made.predicted.peak.high_bytes)}",
                          f"plan anew: memfit plan {made.target or 'TARGET'} --budget {made.budget.device_bytes}", made)
    message = f"{who} does not fit {budget}: the smallest allowed plan needs {gib(made.floor_bytes)}"
    return DoesNotFit(message, _advice(made), made)


def _advice(made: Plan) -> str:
    advice = [f"give --budget {made.floor_bytes}"]
    resident = _resident_bytes(made)
    if resident > 0.6 * made.floor_bytes:
        advice.append(f"{gib(resident)} of it are parameters, gradients and optimizer state, which a smaller batch "
                      "does not shrink")
    lower = [one.name for one in made.rejected if "--fidelity" in one.reason]
    if lower:
        advice.append(f"a lower --fidelity would allow {', '.join(lower)}")
    return "; ".join(advice)


def _resident_bytes(made: Plan) -> int:
    if made.timeline is None or made.timeline.at_peak is None:
        return 0
    held = made.timeline.at_peak.by_category
    return sum(held.get(name, 0) for name in ("parameters", "gradients", "optimizer_state"))
