"""The order in which choices are applied: by what each strategy says it comes after."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import TopologicalSorter

from memfit.apply.registry import strategy
from memfit.core.strategy import Choice


def ordered(choices: Sequence[Choice]) -> list[Choice]:
    """The choices so that each comes after those it names in `after`; otherwise by name."""
    by_name = {choice.name: choice for choice in sorted(choices, key=lambda choice: choice.name)}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name in by_name:
        sorter.add(name, *(before for before in strategy(name).after if before in by_name))
    return [by_name[name] for name in sorter.static_order()]
