"""Whether two sides have the same result, at the fidelity that was promised; one tensor of each in memory at a time.

    bitwise               every loss, gradient, parameter, state and buffer equal to the bit
    reordered, resampled  at the first step loss and each gradient to 1e-5 (relative L2; a gradient below 1e-6 of the
                          whole gradient's norm counts against the whole), buffers to 1e-6, counters exactly;
                          at each later step the loss to 1e-4
    reduced               the loss to 1 % at each step
    adapted               another model or objective: measured by the rule of `reordered`, reported, not judged

After the first step parameters and states drift by rounding alone, so below `bitwise` they are reported only.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from memfit.core.fidelity import Fidelity
from memfit.prove.recording import BUFFERS, FIRST_BUFFERS, GRADIENTS, PARAMETERS, STATES
from memfit.train.tensor_files import TensorFile

FIRST_LOSS, GRADIENT, BUFFER, LATER_LOSS, REDUCED_LOSS = 1e-5, 1e-5, 1e-6, 1e-4, 1e-2
_SMALL_GRADIENT = 1e-6
_WHOLLY = sys.float_info.max  # JSON has no infinity
_CHUNK = 2**22  # elements compared at a time, in double precision


@dataclass(frozen=True)
class Comparison:
    """`differences` say in words what was not as promised; empty if `same_result`."""

    same_result: bool
    max_rel_loss_diff: float
    max_rel_grad_diff: float
    max_rel_param_diff: float
    grad_set_equal: bool
    buffers_equal: bool
    differences: tuple[str, ...]
    most_drifted: str = ""


@dataclass(frozen=True)
class TensorDifference:
    """Of one tensor: L2 norms of the plain one and of the difference, and whether all bits are equal."""

    name: str
    norm: float
    difference: float
    equal: bool

    @property
    def relative(self) -> float:
        return relative(self.difference, self.norm)


def relative(difference: float, norm: float) -> float:
    """0 for no difference; the largest float where there is one against nothing, or where it is not a number."""
    if difference == 0:
        return 0.0
    found = difference / norm if norm > 0 and math.isfinite(difference) else _WHOLLY
    return found if found < _WHOLLY else _WHOLLY


def _loss_difference(theirs: float, ours: float) -> float:
    """Relative; a step that both sides left out (no label counts: its loss is NaN on both) is no difference."""
    if math.isnan(theirs) and math.isnan(ours):
        return 0.0
    return relative(abs(ours - theirs), abs(theirs))


@dataclass(frozen=True)
class _Kind:
    """One file of both sides: differences of what both have, and the names that only one has (plain, planned)."""

    tensors: list[TensorDifference]
    only: tuple[list[str], list[str]]

    @property
    def equal(self) -> bool:
        return all(one.equal for one in self.tensors) and not any(self.only)


def compare(
    plain: Path, planned: Path, plain_losses: Sequence[float], planned_losses: Sequence[float], fidelity: Fidelity
) -> Comparison:
    """Judge the folders and losses of both sides."""
    seen = {name: _read(plain, planned, name) for name in (GRADIENTS, PARAMETERS, FIRST_BUFFERS, BUFFERS, STATES)}
    losses = [_loss_difference(theirs, ours) for theirs, ours in zip(plain_losses, planned_losses)]
    gradients = _against_the_whole(seen[GRADIENTS].tensors)
    found = _judge(seen, losses, gradients, fidelity)
    if len(plain_losses) != len(planned_losses):
        found.append(f"{len(planned_losses)} steps against {len(plain_losses)}")
    drifted = max(seen[PARAMETERS].tensors, key=lambda one: one.relative, default=TensorDifference("", 1.0, 0.0, True))
    return Comparison(
        same_result=not found, max_rel_loss_diff=max(losses, default=0.0),
        max_rel_grad_diff=max((value for _, value in gradients), default=0.0), max_rel_param_diff=drifted.relative,
        grad_set_equal=not any(seen[GRADIENTS].only),
        buffers_equal=seen[FIRST_BUFFERS].equal and seen[BUFFERS].equal, differences=tuple(found),
        most_drifted=drifted.name)


def _judge(
    seen: Mapping[str, _Kind], losses: Sequence[float], gradients: Sequence[tuple[str, float]], fidelity: Fidelity
) -> list[str]:
    """What is not as promised, in words."""
    if fidelity is Fidelity.REDUCED:
        return _losses(losses, REDUCED_LOSS, REDUCED_LOSS)
    found = _sets("gradients", seen[GRADIENTS].only) + _sets("buffers", seen[FIRST_BUFFERS].only)
    if fidelity is not Fidelity.BITWISE:
        buffers = [(one.name, one.relative) for one in seen[FIRST_BUFFERS].tensors]
        return [*found, *_losses(losses, FIRST_LOSS, LATER_LOSS), *_beyond("gradient", gradients, GRADIENT),
                *_beyond("buffer", buffers, BUFFER)]
    found += _sets("optimizer states", seen[STATES].only) + _unequal("loss", [one for one in losses if one > 0])
    for kind, name in (("gradient", GRADIENTS), ("parameter", PARAMETERS), ("optimizer state", STATES),
                       ("buffer", FIRST_BUFFERS), ("buffer", BUFFERS)):
        found += _unequal_tensors(kind, seen[name].tensors)
    return found


def difference(name: str, plain: torch.Tensor, planned: torch.Tensor) -> TensorDifference:
    """Compare two tensors in pieces; integers (counters) differ infinitely if they differ at all."""
    if plain.shape != planned.shape:
        return TensorDifference(name, 0.0, math.inf, False)
    equal = torch.equal(plain, planned)
    if equal and plain.dtype == planned.dtype:
        return TensorDifference(name, _norm(plain), 0.0, True)
    if not (plain.is_floating_point() or plain.is_complex()):
        return TensorDifference(name, 0.0, math.inf, False)
    squares = 0.0
    one, other = plain.reshape(-1), planned.reshape(-1)
    for start in range(0, one.numel(), _CHUNK):
        piece = slice(start, start + _CHUNK)
        squares += float((one[piece].to(_wide(plain)) - other[piece].to(_wide(plain))).abs().square().sum())
    return TensorDifference(name, _norm(plain), math.sqrt(squares) if squares == squares else math.inf, False)


def _norm(tensor: torch.Tensor) -> float:
    flat, squares = tensor.reshape(-1), 0.0
    for start in range(0, flat.numel(), _CHUNK):
        squares += float(flat[start : start + _CHUNK].to(_wide(tensor)).abs().square().sum())
    return math.sqrt(squares) if squares == squares else math.inf


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _read(plain: Path, planned: Path, file: str) -> _Kind:
    ours, theirs = TensorFile(planned / file), TensorFile(plain / file)
    shared = [name for name in theirs if name in ours]
    only = ([name for name in theirs if name not in ours], [name for name in ours if name not in theirs])
    return _Kind([difference(name, theirs.read(name), ours.read(name)) for name in shared], only)


def _against_the_whole(gradients: Sequence[TensorDifference]) -> list[tuple[str, float]]:
    whole = math.sqrt(sum(g.norm**2 for g in gradients))
    return [(g.name, relative(g.difference, whole if g.norm < _SMALL_GRADIENT * whole else g.norm)) for g in gradients]


def _losses(differences: Sequence[float], first: float, later: float) -> list[str]:
    return [f"the loss of step {step + 1} differs by {value:.2g} (allowed {allowed:g})"
            for step, value in enumerate(differences) if value > (allowed := first if step == 0 else later)]


def _beyond(kind: str, differences: Sequence[tuple[str, float]], allowed: float) -> list[str]:
    over = [(name, value) for name, value in differences if value > allowed]
    if not over:
        return []
    name, value = max(over, key=lambda one: one[1])
    return [f"{len(over)} of {len(differences)} {kind}s differ by more than {allowed:g}, {name} by {value:.2g}"]


def _unequal(kind: str, values: Sequence[float]) -> list[str]:
    return [f"{len(values)} {kind}es are not equal to the bit, by up to {max(values):.2g}"] if values else []


def _unequal_tensors(kind: str, tensors: Sequence[TensorDifference]) -> list[str]:
    over = [t for t in tensors if not t.equal]
    if not over:
        return []
    return [f"{len(over)} of {len(tensors)} {kind}s are not equal to the bit, {over[0].name} among them"]


def _sets(kind: str, only: tuple[list[str], list[str]]) -> list[str]:
    sides = zip(("only the plain run has", "only the planned run has"), only)
    return [f"{words} {kind} of {', '.join(names[:3])}" for words, names in sides if names]
