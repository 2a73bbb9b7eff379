"""Parameters held in bfloat16 and stepped in float32, one at a time.

An update of less than 1/256 of a bfloat16 number is lost where the sum is rounded to the nearest. Either it is rounded up or
down at random, so that the mean is right, or what was rounded off is kept and added before the next step: P. Zamirai et al.,
"Revisiting BFloat16 Training" (arXiv 2010.06192), which compares both. Here it is kept whole: the lower 16 bits of the float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from memfit.hooks.apart import step_one
from memfit.hooks.moments.codecs import B_FLOAT_16
from memfit.jobs import Job

STOCHASTIC, KAHAN = "stochastic", "kahan"
_REST = "rounded_off"  # key in the optimizer's state
_NOISE = 1 << 16  # random numbers for a parameter and step, used again for every so many elements
_LEAST_STRETCH = 1 << 17  # elements whose bits are taken apart at a time
_HALF = 1 << 15
_SEEDS = 1_000_003  # between two steps: more than a model has parameters


class HeldLow:
    """The rule for a job's `parameters`, which are bfloat16 and dense."""

    def __init__(self, job: Job, parameters: Sequence[torch.nn.Parameter], rounding: str) -> None:
        self._job, self._rounding = job, rounding
        self._place = {id(parameter): place for place, parameter in enumerate(parameters)}
        self._steps = [0] * len(parameters)
        self._first: dict[int, torch.Tensor] = {}  # rests before there is a state to keep them in

    def take(self, parameter: torch.nn.Parameter) -> None:
        """Hold a float32 parameter from now on."""
        numbers = parameter.detach()
        if self._rounding == STOCHASTIC:
            _set(parameter, numbers.to(torch.bfloat16))
            return
        held = torch.empty_like(numbers, dtype=torch.bfloat16)
        rest = _new_rest(held)
        _split(numbers.clone() if numbers.stride() == held.stride() else numbers.contiguous(), held, rest)
        _set(parameter, held)
        self._keep_rest(parameter, rest)

    def give_back(self, parameter: torch.nn.Parameter) -> None:
        """The parameter is float32 again, and nothing is left of this in the optimizer's state."""
        numbers = self.exact(parameter)
        self._first.pop(id(parameter), None)
        self._job.optimizer.state.get(parameter, {}).pop(_REST, None)
        _set(parameter, numbers)

    @contextmanager
    def wide(self, parameter: torch.Tensor) -> Iterator[None]:
        if id(parameter) not in self._place or parameter.grad is None:
            yield
            return
        held, gradient = parameter.data, parameter.grad
        _exchange(parameter, self.exact(parameter), gradient.float())
        if self._job.zero_grad == "after_step":  # nobody looks at it any more
            gradient = None
        try:
            _float_states(self._job.optimizer, parameter)
            yield
        finally:
            numbers = parameter.data
            _exchange(parameter, held, gradient)
        self._hold(parameter, held, numbers)

    @contextmanager
    def stepped(self) -> Iterator[None]:
        optimizer = self._job.optimizer
        ready = [(group, parameter) for group in optimizer.param_groups for parameter in group["params"]
                 if id(parameter) in self._place and parameter.grad is not None]
        hidden: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        for group, parameter in sorted(ready, key=lambda one: one[1].numel()):  # the largest when others' gradients are gone
            with self.wide(parameter):
                step_one(optimizer, group, parameter)
            hidden.append((parameter, parameter.grad))
            parameter.grad = None
        try:
            yield
        finally:
            for parameter, gradient in hidden:
                parameter.grad = gradient

    @torch.no_grad()
    def exact(self, parameter: torch.Tensor) -> torch.Tensor:
        """The parameter in float32, with what was rounded off where that is kept; a tensor of its own."""
        numbers = parameter.detach().float()
        rest = self._rest(parameter)
        if rest is not None:
            _join(numbers, rest)
        return numbers

    def state(self) -> dict[str, Any]:
        return {"steps": list(self._steps)}

    def load(self, state: dict[str, Any]) -> None:
        if len(state["steps"]) == len(self._steps):
            self._steps = list(state["steps"])

    def _rest(self, parameter: torch.Tensor) -> torch.Tensor | None:
        return self._job.optimizer.state.get(parameter, {}).get(_REST, self._first.get(id(parameter)))

    def _keep_rest(self, parameter: torch.Tensor, rest: torch.Tensor) -> None:
        """In the optimizer's state, so that it is saved with it. An empty state must stay so: the optimizer fills it."""
        state = self._job.optimizer.state.get(parameter, {})
        if state:
            self._first.pop(id(parameter), None)
            state[_REST] = rest
        else:
            self._first[id(parameter)] = rest

    @torch.no_grad()
    def _hold(self, parameter: torch.Tensor, held: torch.Tensor, numbers: torch.Tensor) -> None:
        place = self._place[id(parameter)]
        self._steps[place] += 1
        if self._rounding == STOCHASTIC:
            noise = _noise(held, self._steps[place] * _SEEDS + place)
            B_FLOAT_16[0].write({"": _flat(held)}, 0, held.numel(), _flat(numbers), noise)
            return
        rest = self._rest(parameter)
        rest = _new_rest(held) if rest is None else rest  # a plain state was loaded
        _split(numbers, held, rest)
        self._keep_rest(parameter, rest)


def _new_rest(held: torch.Tensor) -> torch.Tensor:
    """In the order in which the parameter lies in memory."""
    return held.new_empty(held.numel(), dtype=torch.int16)


def _set(parameter: torch.nn.Parameter, numbers: torch.Tensor) -> None:
    parameter.grad = None
    parameter.data = numbers


@torch.no_grad()
def _split(numbers: torch.Tensor, held: torch.Tensor, rest: torch.Tensor) -> None:
    """Float32 `numbers` (used up) into their nearest bfloat16 and, as int16, what their bits are beyond that."""
    bits, upper, lower = _flat(numbers).view(torch.int32), _flat(held).view(torch.int16), rest
    for start, stop in _stretches(len(bits)):
        nearest = bits[start:stop].add(_HALF).bitwise_right_shift_(16)
        upper[start:stop].copy_(nearest)
        lower[start:stop].copy_(bits[start:stop].sub_(nearest.bitwise_left_shift_(16)))


def _join(numbers: torch.Tensor, rest: torch.Tensor) -> None:
    """Add to `numbers` (float32 of a bfloat16), in place, what was split off."""
    bits = _flat(numbers).view(torch.int32)
    for start, stop in _stretches(len(bits)):
        bits[start:stop].add_(rest[start:stop].to(torch.int32))


def _stretches(count: int) -> Iterator[tuple[int, int]]:
    length = max(_LEAST_STRETCH, -(-count // 32))
    for start in range(0, count, length):
        yield start, min(start + length, count)


def _exchange(parameter: torch.Tensor, numbers: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """A gradient must have its parameter's dtype at any time."""
    parameter.grad = None
    parameter.data = numbers
    parameter.grad = gradient


def _float_states(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    """`Optimizer.load_state_dict` casts states to the parameter's dtype: torch's own optimizers want them in float32 again."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    state = optimizer.state.get(parameter, {})
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16:
            state[key] = value.float()


def _flat(dense: torch.Tensor) -> torch.Tensor:
    """The numbers as they lie in memory."""
    return dense.as_strided((dense.numel(),), (1,), dense.storage_offset())


def _noise(like: torch.Tensor, seed: int) -> torch.Tensor:
    """Drawn anew from the number of the step: nothing to save but that, and no other draws change."""
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.randint(0, 1 << 16, (min(_NOISE, like.numel()),), generator=generator, dtype=torch.int32, device=like.device)
