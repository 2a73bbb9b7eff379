"""The limit around a run: set above the warm process, lifted when the run has ended one way or the other."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from memfit.launch import ResidentSampler, allowance, can_enforce, lift_data_limit, limit_growth
from memfit.train.warm import warm_up


@dataclass(frozen=True)
class Enclosure:
    """`sampler` counts resident growth from the warm process on; `limit_bytes` is the process's limit, None if none."""

    sampler: ResidentSampler
    limit_bytes: int | None

    @property
    def enforced(self) -> bool:
        return self.limit_bytes is not None

    def within(self, budget_bytes: int | None, peak_bytes: int) -> bool | None:
        """Whether tensors stayed within the budget, and resident growth within its allowance."""
        if budget_bytes is None:
            return None
        return peak_bytes <= budget_bytes and self.sampler.growth_bytes <= allowance(budget_bytes)


@contextmanager
def enclosed(budget_bytes: int | None, *, enforce: bool) -> Iterator[Enclosure]:
    """Warm the process, note what it holds, and set the limit (if it shall and can be). What is imported must be
    imported before; what is made must be made inside."""
    warm_up()
    gc.collect()
    with ResidentSampler() as sampler:
        sampler.baseline()
        limit = limit_growth(budget_bytes) if enforce and budget_bytes is not None and can_enforce() else None
        try:
            yield Enclosure(sampler, limit)
        finally:
            lift_data_limit()
