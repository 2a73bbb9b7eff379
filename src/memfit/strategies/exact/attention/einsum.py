"""Attention written with `torch.einsum`: the two products, in any order of the dimensions."""

from __future__ import annotations

from typing import Any

import torch

from memfit.strategies.exact.attention import lazy


def product(args: tuple[Any, ...]) -> Any:
    """`einsum(equation, q, k)` as lazy scores, `einsum(equation, weights, v)` as the fused call, else NotImplemented."""
    if len(args) != 3 or not isinstance(args[0], str):
        return NotImplemented
    equation, left, right = args
    letters = _letters(equation, left, right)
    if letters is None:
        return NotImplemented
    first, second, result = letters
    if isinstance(left, lazy.Lazy):
        return _attended(left, right, first, second, result)
    return _scores(equation, left, right, letters) if not isinstance(right, lazy.Lazy) else NotImplemented


def _scores(equation: str, left: torch.Tensor, right: torch.Tensor, letters: tuple[str, str, str]) -> Any:
    """`[batch] i d, [batch] j d -> [batch] i j`."""
    first, second, result = letters
    batch, row, column = result[:-2], result[-2], result[-1]
    summed = set(first) - set(result)
    if len(summed) != 1 or set(second) - set(result) != summed:
        return NotImplemented
    (inner,) = summed
    if set(first) != {*batch, row, inner} or set(second) != {*batch, column, inner}:
        return NotImplemented
    q = left.permute([first.index(one) for one in (*batch, row, inner)])
    k = right.permute([second.index(one) for one in (*batch, inner, column)])
    made = lazy.product(torch.matmul, q, k)
    if isinstance(made, lazy.Lazy):
        made.memfit_origin = lazy.Origin(torch.einsum, (equation, left, right), {}, made.memfit_origin.gradients,
                                         made.memfit_origin.autocast) if made.memfit_origin else None
    return made


def _attended(weights: lazy.Lazy, value: torch.Tensor, first: str, second: str, result: str) -> Any:
    """`[batch] i j, [batch] j d -> [batch] i d`."""
    batch, row, column = first[:-2], first[-2], first[-1]
    own = set(second) - {*batch, column}
    if len(own) != 1 or set(second) != {*batch, column, *own} or set(result) != {*batch, row, *own}:
        return NotImplemented
    (feature,) = own
    out = lazy.attended(weights, value.permute([second.index(one) for one in (*batch, column, feature)]))
    if out is NotImplemented:
        return NotImplemented
    made = (*batch, row, feature)
    return out.permute([made.index(one) for one in result])


def _letters(equation: str, left: Any, right: Any) -> tuple[str, str, str] | None:
    """The letters of two operands and the result, where each has as many different ones as it has dimensions, 3 or 4."""
    if not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)):
        return None
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    first, comma, second = inputs.partition(",")
    parts = (first, second, result)
    if not arrow or not comma or any(not part.isalpha() or len(set(part)) != len(part) for part in parts):
        return None
    if len(result) not in (3, 4) or (len(first), len(second)) != (left.dim(), right.dim()):
        return None
    return parts
