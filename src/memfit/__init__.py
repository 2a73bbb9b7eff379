"""Tell it how much memory you have; it trains your PyTorch model in it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memfit.api import Job, Plan, Session, Verdict, apply, estimate, fit, plan, prove

__all__ = ["Job", "Plan", "Session", "Verdict", "apply", "estimate", "fit", "plan", "prove"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Public names come from `memfit.api` when first used (PEP 562), so that `import memfit` brings no torch."""
    if name in __all__:
        return getattr(import_module("memfit.api"), name)
    raise AttributeError(f"module 'memfit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _Memfit(ModuleType):
    """`memfit.plan`, `memfit.apply` and `memfit.prove` are functions and also rooms: importing a room must not put
    the module where the public function is looked up."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in __all__ and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Memfit
