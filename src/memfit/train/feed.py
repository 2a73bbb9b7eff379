"""Batches of an epoch, and going back to a place inside one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from memfit.core.errors import UsageError
from memfit.jobs import Job
from memfit.train.failures import told_to_user


class Feed:
    """Gives the job's batches. Without `data` the sample batch is repeated, and there are no epochs."""

    def __init__(self, job: Job) -> None:
        self._job = job

    @property
    def has_epochs(self) -> bool:
        return self._job.data is not None

    def epoch(self, number: int, skip: int = 0, skipped: Callable[[], None] = lambda: None) -> Iterator[Any]:
        """Batches of epoch `number` (from 0) after the first `skip`; `skipped()` is called once those are drawn.

        Raises UsageError if the data gives no batch at all (an iterator that is used up, say) or raises itself.
        """
        if self._job.data is None:
            skipped()
            yield from itertools.repeat(self._job.batch)
            return
        with told_to_user("the job's data"):
            batches = iter(self._job.data(number) if callable(self._job.data) else self._job.data)
        given = 0
        while True:
            if given == skip:
                skipped()
            with told_to_user("the job's data"):
                batch = next(batches, _END)
            if batch is _END:
                break
            given += 1
            if given > skip:
                yield batch
            del batch
        if given == 0:
            raise UsageError(f"the job's data gave no batch in epoch {number + 1}",
                             "give an iterable that can be run through again, or a function of the epoch")


_END: Any = object()
