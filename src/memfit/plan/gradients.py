"""What a job would gain that lets its gradients go as soon as the optimizer has stepped."""

from __future__ import annotations

from memfit.plan.explore import Candidate, Explorer
from memfit.report.format import gib

_WORTH = 0.001  # of the peak


def release_note(explorer: Explorer, chosen: Candidate) -> tuple[str, ...]:
    """A line of advice where the gradients of the step before, which the job keeps, make the peak of this one; else ().

    Where `zero_grad` stands is the job's own (its loop may read gradients after the step), so this is no strategy.
    """
    job = explorer.fake
    if job.zero_grad == "after_step":
        return ()
    released = explorer.released(chosen.choices)
    kept_bytes = chosen.simulation.peak.high_bytes
    if not isinstance(released, Candidate) or released.simulation.peak.high_bytes >= (1 - _WORTH) * kept_bytes:
        return ()
    note = (f"gradients of the step before live on into this one (zero_grad={job.zero_grad}): with "
            f'Job(zero_grad="after_step") this plan needs {gib(released.simulation.peak.high_bytes)} in place of '
            f"{gib(kept_bytes)}")
    return (note,)
