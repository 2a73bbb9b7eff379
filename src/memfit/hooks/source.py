"""Code of memfit as text, so that a plan written as plain PyTorch runs exactly what memfit runs."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def source(*things: Callable[..., Any] | type | ModuleType) -> str:
    """The source of functions, classes and whole modules: first the imports of their modules (memfit's own left out,
    one name a line), then the code without docstrings of modules."""
    modules = {_module(one): None for one in things}
    imports = {line: None for module in modules for line in _imports(module)}
    bodies = [_body(one) if isinstance(one, ModuleType) else inspect.getsource(one).strip() for one in things]
    return "\n".join(imports) + "\n\n\n" + "\n\n\n".join(bodies)


def _module(thing: Any) -> ModuleType:
    return thing if isinstance(thing, ModuleType) else sys.modules[thing.__module__]


def _imports(module: ModuleType) -> list[str]:
    lines: list[str] = []
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.Import):
            lines.extend(f"import {_name(one)}" for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith(("memfit", "__future__")):
            lines.extend(f"from {node.module} import {_name(one)}" for one in node.names)
    return lines


def _name(one: ast.alias) -> str:
    return f"{one.name} as {one.asname}" if one.asname else one.name


def _body(module: ModuleType) -> str:
    text = inspect.getsource(module)
    nodes = [node for node in ast.parse(text).body[1:] if not isinstance(node, (ast.Import, ast.ImportFrom))]
    first = min(one.lineno for one in [nodes[0], *getattr(nodes[0], "decorator_list", [])])
    return "\n".join(text.splitlines()[first - 1:]).strip()
