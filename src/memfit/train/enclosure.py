"""The limit around a run: set above the warm process, lifted when the run has ended one way or the other."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn

from memfit.apply import strategies
from memfit.core.strategy import Choice, WarmsUp
from memfit.launch import (
    ResidentSampler,
    allowance,
    can_enforce,
    lift_data_limit,
    limit_growth,
    process_memory,
)
from memfit.train.code_pages import code_read_only
from memfit.train.warm import warm_up


class Enclosure:
    """`limit_bytes` is the process's limit, None if there is none."""

    def __init__(self, sampler: ResidentSampler, limit_bytes: int | None) -> None:
        self._sampler = sampler
        self._growth_bytes: int | None = None
        self.limit_bytes = limit_bytes

    @property
    def enforced(self) -> bool:
        return self.limit_bytes is not None

    @property
    def growth_bytes(self) -> int:
        """Highest resident growth above the warm process, until `end`."""
        return self._sampler.growth_bytes if self._growth_bytes is None else self._growth_bytes

    def sparing_code(self, model: nn.Module) -> AbstractContextManager[None]:
        """While the model runs, the code that its operators generate does not count against a limit."""
        return code_read_only(model) if self.enforced else nullcontext()

    def end(self) -> None:
        """What follows (a step under the profiler, say) is not the run's: growth stays, the limit is lifted."""
        if self._growth_bytes is None:
            self._growth_bytes = self._sampler.growth_bytes
            lift_data_limit()

    def within(self, budget_bytes: int | None, peak_bytes: int) -> bool | None:
        """Whether tensors stayed within the budget and resident growth (where it is known) within its allowance."""
        if budget_bytes is None:
            return None
        if process_memory() is None:
            return peak_bytes <= budget_bytes
        return peak_bytes <= budget_bytes and self.growth_bytes <= allowance(budget_bytes)


@contextmanager
def enclosed(budget_bytes: int | None, *, enforce: bool, choices: Sequence[Choice] = ()) -> Iterator[Enclosure]:
    """Warm the process (for these strategies, too), note what it holds, and set the limit (if it shall and can be). What is
    imported must be imported before; what is made must be made inside."""
    known = strategies()
    warm_up()
    for acting in (known.get(choice.name) for choice in choices):
        if isinstance(acting, WarmsUp):
            acting.warm_up()
    gc.collect()
    with ResidentSampler() as sampler:
        sampler.baseline()
        limit = limit_growth(budget_bytes) if enforce and budget_bytes is not None and can_enforce() else None
        enclosure = Enclosure(sampler, limit)
        try:
            yield enclosure
        finally:
            enclosure.end()
