"""`optimizer.state` whose large tensors are away: a tensor that is put in is moved as it is put in."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from memfit.hooks.away import Store, brought_back, can_move, moved
from memfit.jobs.away import is_away


class ParameterState(dict[str, Any]):
    """One parameter's state. Copies and pickles are plain dicts with ordinary tensors."""

    def __init__(self, store: Store, least_bytes: int, values: Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__()
        self._store, self._least_bytes = store, least_bytes
        self._away: dict[str, torch.Tensor] | None = None  # while its tensors are on a card: where they belong
        for key, value in values:
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        here = self._away is not None or not self._large(value)
        super().__setitem__(key, value if here else moved(value, self._store))

    def bring(self, device: torch.device) -> None:
        """Copies of what is away to the device, for a step; what is put in meanwhile stays there, too."""
        self._away = {}
        for key, value in self.items():
            if isinstance(value, torch.Tensor) and is_away(value) and self._size(value) >= self._least_bytes:
                self._away[key] = value
                super().__setitem__(key, _copied_to(device, value))

    def take_away(self) -> None:
        """The reverse: what a step has written goes back, and what it has made."""
        away, self._away = self._away or {}, None
        for key, value in list(self.items()):
            if key in away and self._large(value):
                away[key].copy_(value, non_blocking=True)
                super().__setitem__(key, away[key])
            else:
                self[key] = value

    def _large(self, value: Any) -> bool:
        return can_move(value) and self._size(value) >= self._least_bytes

    @staticmethod
    def _size(value: torch.Tensor) -> int:
        return value.numel() * value.element_size()

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **named: Any) -> None:
        for key, value in dict(*others, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> ParameterState:
        self.update(other)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (list(self.items()),)


class AwayStates(defaultdict[torch.Tensor, Any]):
    """The states of all parameters, in place of the optimizer's own mapping; tensors of `least_bytes` and more are away."""

    def __init__(self, store: Store, least_bytes: int) -> None:
        super().__init__()
        self._store, self._least_bytes = store, least_bytes
        self.replaced: defaultdict[torch.Tensor, Any] = defaultdict(dict)  # the optimizer's own mapping, emptied

    def take(self, states: dict[torch.Tensor, Any]) -> None:
        """Move everything here, one tensor at a time; `states` is empty afterwards. One that cannot be moved stays there."""
        for parameter, held in list(states.items()):
            if isinstance(held, dict):
                _move(held, self[parameter])
            else:
                self[parameter] = held
            del states[parameter]

    def give_back(self, states: dict[torch.Tensor, Any]) -> None:
        """The reverse: ordinary tensors, or where memory is refused the mapped ones, which serve as well."""
        for parameter, held in list(self.items()):
            if isinstance(held, dict):
                rest, states[parameter] = states.get(parameter, {}), {}  # what was not moved came after
                _move(held, states[parameter], _ordinary)
                states[parameter].update(rest)
            else:
                states[parameter] = held
            del self[parameter]

    def __missing__(self, parameter: torch.Tensor) -> ParameterState:
        state = self._state()
        self[parameter] = state
        return state

    def _state(self, values: Iterable[tuple[str, Any]] = ()) -> ParameterState:
        return ParameterState(self._store, self._least_bytes, values)

    def __setitem__(self, parameter: torch.Tensor, state: Any) -> None:
        if isinstance(state, Mapping) and not isinstance(state, ParameterState):
            state = self._state(state.items())
        super().__setitem__(parameter, state)

    def __deepcopy__(self, memo: dict[int, Any]) -> defaultdict[torch.Tensor, Any]:
        return defaultdict(dict, {copy.deepcopy(key, memo): copy.deepcopy(value, memo) for key, value in self.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (dict, list(self.items()))


def _move(source: dict[str, Any], to: dict[str, Any], change: Callable[[Any], Any] = lambda value: value) -> None:
    """Key by key, so that never more than one value is in both."""
    for key in list(source):
        to[key] = change(source[key])
        del source[key]


def _copied_to(device: torch.device, value: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        made = torch.empty_like(value, device=device)
        return made.copy_(value, non_blocking=True)


def _ordinary(value: Any) -> Any:
    if not (isinstance(value, torch.Tensor) and is_away(value)):
        return value
    try:
        return brought_back(value)
    except (RuntimeError, MemoryError):
        return value
