"""Code of memfit as text, so that a plan written as plain PyTorch runs exactly what memfit runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any


def source(*things: Callable[..., Any] | type | ModuleType) -> str:
    """The source of functions and classes, or of whole modules without docstring and imports."""
    return "\n\n\n".join(_body(one) if isinstance(one, ModuleType) else inspect.getsource(one).strip() for one in things)


def _body(module: ModuleType) -> str:
    lines = inspect.getsource(module).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(("def ", "class ", "@", "_")) and i > 0)
    return "\n".join(lines[first:]).strip()
