"""The strategies that are installed: every module below `memfit.strategies` that has a `STRATEGY`."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType, ModuleType

import memfit.strategies
from memfit.core.errors import UsageError
from memfit.core.strategy import Strategy


@lru_cache(maxsize=1)
def strategies() -> Mapping[str, Strategy]:
    """All strategies by name, in the order of their names."""
    found = {module.STRATEGY.name: module.STRATEGY for module in _modules() if hasattr(module, "STRATEGY")}
    return MappingProxyType(dict(sorted(found.items())))


def strategy(name: str) -> Strategy:
    """The strategy of that name. Raises UsageError, naming the nearest one."""
    known = strategies()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
        raise UsageError(f"unknown strategy {name!r}", advice)
    return known[name]


def _modules() -> Iterator[ModuleType]:
    """The modules of each family (`exact`, `lossy`); names that begin with an underscore are private."""
    for family in pkgutil.iter_modules(memfit.strategies.__path__, "memfit.strategies."):
        package = importlib.import_module(family.name)
        for one in pkgutil.iter_modules(package.__path__, f"{family.name}."):
            if not one.name.rpartition(".")[2].startswith("_"):
                yield importlib.import_module(one.name)
