"""One job on many cards: where does it fit?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import groupby

from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.results import Estimate
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.plan.explore import Explorer
from memfit.plan.make import estimate_of
from memfit.simulate import simulate
from memfit.simulate.cuda_prediction import Replays


def estimate_everywhere(job: Job, devices: Sequence[Device], choices: Sequence[Choice] = (), target: str = "",
                        ) -> Iterator[Estimate]:
    """An estimate for each CUDA card that can hold more than its context, by compute capability.

    Cards of one compute capability run the same kernels, so the step is traced once for all of them, on the one with most
    multiprocessors: only partial sums depend on how many there are, and those grow with it.
    """
    cards = sorted((one for one in devices if one.kind == "cuda"), key=_capability)
    for _, alike in groupby(cards, key=_capability):
        yield from _alike(job, list(alike), choices, target or job.name)


def _capability(card: Device) -> tuple[int, int]:
    return card.compute_capability or (0, 0)


def _alike(job: Job, cards: Sequence[Device], choices: Sequence[Choice], target: str) -> Iterator[Estimate]:
    began = time.perf_counter()
    explorer = Explorer(job, max(cards, key=lambda card: (card.multiprocessors or 0, card.capacity_bytes)))
    candidate = explorer.candidate(choices)
    if isinstance(candidate, str):
        raise UsageError(f"the plan does not apply to this job: {candidate}", "make a new plan for it")
    first = None if choices else explorer.first
    replays = Replays([candidate.trace] if first is None else [first, candidate.trace])
    for card in cards:
        try:
            seen = simulate(candidate.trace, card, first=first, torch_version=explorer.torch_version, replays=replays)
        except UsageError:  # a card that does not hold its own context
            continue
        yield estimate_of(candidate.trace, seen, seen.first_step_peak_bytes or 0, card, target, began)
        began = time.perf_counter()
