"""Which saved tensors to make again in backward: bounds read off a trace, from none down to the smallest peak.

The bounds only rank. What is returned is applied, traced and simulated (`plan.search`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise

from memfit.core.device import Device
from memfit.core.strategy import Choice
from memfit.core.trace import Kind, Trace
from memfit.hooks.tensor_recompute import counted_as, write_tensors
from memfit.plan.selection import Selection, pareto
from memfit.simulate import again_seconds
from memfit.trace.usage import Curve, usage

_RANDOM = frozenset({
    "bernoulli_", "bernoulli", "rand", "randn", "rand_like", "randn_like", "randint", "randperm", "normal_", "uniform_",
    "native_dropout", "dropout", "exponential_", "multinomial", "random_", "rrelu_with_noise", "poisson",
})
_FACTORIES = frozenset({"empty", "empty_like", "zeros", "zeros_like", "ones", "ones_like", "full", "arange", "empty_strided",
                        "new_zeros", "new_empty", "scalar_tensor"})
_MASKS = frozenset({"bernoulli_"})  # drawn zeros and ones are kept as bytes (hooks/tensor_recompute.py)
_MASK_FREES = 0.75
_AGAIN = {  # what runs instead the second time
    "native_batch_norm": "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit": "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update": "_native_batch_norm_legit_no_training", "bernoulli_": "_to_copy"}
_WEIGHTS = (1.0, 0.6)
_CHAIN = 6
_WORTH = 0.75  # an unsaved input of at least this share of the value is made again, too, not kept instead
_POINTS = 40
Key = tuple[str, int]


@dataclass(frozen=True)
class Value:
    """One saved storage in one forward: droppable in `[last forward use, first backward use)`."""

    storage: int
    nbytes: int
    idle_from: int
    needed_at: int
    inputs: tuple[int, ...]


@dataclass
class Unit:
    """Operator calls that are made again together, and the saved values (one a traced forward) that this frees."""

    keys: frozenset[Key]
    order: int
    seconds: float
    values: list[Value] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.values)


class Recomputing:
    """Bounds for sets of recomputed values on one traced step."""

    def __init__(self, trace: Trace, device: Device) -> None:
        self._trace, self._device = trace, device
        self._use = usage(trace)
        self._read = _Reads(trace)
        self.units = self._units()
        self._unit_of = {value.storage: unit for unit in self.units for value in unit.values}

    def selections(self) -> list[Selection]:
        """Selections from gentle to smallest, best ones only."""
        return pareto([selection for weight in _WEIGHTS for selection in self._descend(weight)])

    # -- what can be made again -----------------------------------------------------------------------------------

    def _units(self) -> list[Unit]:
        found: dict[frozenset[Key], Unit] = {}
        for storage in self._read.saved(self._use.death):
            recipe = self._recipe(storage, _CHAIN)
            if recipe is None:
                continue
            ops, inputs = recipe
            keys = frozenset(self._read.key[op] for op in ops)
            unit = found.get(keys)
            if unit is None:
                unit = found[keys] = Unit(keys, self._read.position[max(ops)], 0.0)
            idle, needed = self._read.gap(storage)
            if needed > idle:
                unit.values.append(Value(storage, self._frees(storage), idle, needed, inputs))
                unit.seconds += sum(self._again_seconds(op) for op in ops) * self._read.weight(idle)
        return sorted((u for u in found.values() if u.values), key=lambda u: -u.order)

    def _recipe(self, storage: int, depth: int) -> tuple[frozenset[int], tuple[int, ...]] | None:
        """The operators to run again for a storage and the storages that they need; None if that cannot be."""
        writers = self._since_drawn(self._read.writers.get(storage) or [])
        if not writers or any(self._trace.ops[op].name in (_RANDOM | _FACTORIES) - _MASKS for op in writers):
            return None
        ops, needs = set(writers), []
        for op in writers:
            for source in self._trace.ops[op].reads:
                if source == storage:
                    continue
                if self._read.changed_after(source, self._read.position[op]):
                    return None
                more = self._chain(storage, source, depth)
                if more is None:
                    needs.append(source)
                else:
                    ops |= more[0]
                    needs.extend(more[1])
        return frozenset(ops), tuple(dict.fromkeys(n for n in needs if n >= self._trace.resident))

    def _since_drawn(self, writers: list[int]) -> list[int]:
        """Without what came before a mask was drawn: its bytes are kept, and what was done to it since is done again."""
        drawn = next((place for place, op in enumerate(writers) if self._trace.ops[op].name in _MASKS), 0)
        return writers[drawn:]

    def _frees(self, storage: int) -> int:
        nbytes = self._trace.storages[storage].nbytes
        masked = any(self._trace.ops[op].name in _MASKS for op in self._read.writers[storage])
        return int(nbytes * _MASK_FREES) if masked else nbytes

    def _again_seconds(self, op: int) -> float:
        one = self._trace.ops[op]
        passes = 2 if one.name in _MASKS else 1  # into bytes, and back
        return passes * again_seconds(replace(one, name=_AGAIN.get(one.name, one.name)), self._device)

    def _chain(self, storage: int, source: int, depth: int) -> tuple[frozenset[int], tuple[int, ...]] | None:
        """An input that nobody saves is made again on the way, if that is cheaper than keeping it."""
        if source < self._trace.resident or depth == 0 or self._read.is_saved(source, self._use.death):
            return None
        nested = self._recipe(source, depth - 1)
        if nested is None:
            return None
        sizes = self._trace.storages
        pointless_to_keep = sizes[source].nbytes >= _WORTH * sizes[storage].nbytes
        if any(self._trace.ops[op].flops for op in nested[0]) and not pointless_to_keep:
            return None
        return nested

    # -- choosing -------------------------------------------------------------------------------------------------

    def _descend(self, weight: float) -> list[Selection]:
        chosen: list[Unit] = []
        curve = self._curve(chosen)
        found = [self._selection(chosen, curve)]
        left = list(self.units)
        while left:
            where = int(curve.argmax())
            left = self._ranked(left, where, weight)
            step = self._largest_step(chosen, left, curve)
            if step is None:
                break
            chosen, curve, used = step
            left = left[used:] if used else left[1:]
            found.append(self._selection(chosen, curve))
        return found

    def _ranked(self, left: list[Unit], where: int, weight: float) -> list[Unit]:
        """Units by what they free at the peak for their time; those that free nothing there come last."""

        def worth(unit: Unit) -> tuple[float, int]:
            freed = sum(self._freed(v) for v in unit.values if v.idle_from <= where < v.needed_at)
            return (-freed / max(unit.seconds, 1e-7) ** weight, unit.order)

        return sorted(left, key=worth)

    def _freed(self, value: Value) -> int:
        """What dropping it gives, less the inputs that must then stay for it alone."""
        death = self._use.death
        kept = sum(self._trace.storages[i].nbytes for i in value.inputs if death[i] < value.needed_at)
        return value.nbytes - kept

    def _largest_step(
        self, chosen: list[Unit], left: list[Unit], curve: Curve
    ) -> tuple[list[Unit], Curve, int] | None:
        """Add the best few units at once if that lowers the peak, else fewer, else the first one alone that does."""
        top = int(curve.max())
        batch = max(1, len(self.units) // _POINTS)
        for count in sorted({batch, 1}, reverse=True):
            trial = [*chosen, *left[:count]]
            new = self._curve(trial)
            if int(new.max()) < top:
                return trial, new, count
        for place, unit in enumerate(left[1:8], start=1):
            new = self._curve([*chosen, unit])
            if int(new.max()) < top:
                left.insert(0, left.pop(place))
                return [*chosen, unit], new, 1
        return None

    def _curve(self, chosen: list[Unit]) -> Curve:
        """The curve with the chosen values dropped: each lives again from when it, or what is made of it, is needed."""
        curve = self._use.curve.copy()
        needed: dict[int, int] = {v.storage: v.needed_at for unit in chosen for v in unit.values}
        extended: dict[int, int] = {}
        for value in sorted((v for unit in chosen for v in unit.values), key=lambda v: -self._use.birth[v.storage]):
            at = needed[value.storage]
            for source in value.inputs:
                if source in needed:
                    needed[source] = min(needed[source], at)
                elif self._use.death[source] < at:
                    extended[source] = max(extended.get(source, 0), at)
        for unit in chosen:
            for value in unit.values:
                stop = needed[value.storage]
                if stop > value.idle_from:
                    curve[value.idle_from:stop] -= value.nbytes
        for source, stop in extended.items():
            curve[int(self._use.death[source]):stop] += self._trace.storages[source].nbytes
        return curve

    def _selection(self, chosen: list[Unit], curve: Curve) -> Selection:
        named: dict[str, set[int]] = defaultdict(set)
        for unit in chosen:
            for name, number in unit.keys:
                named[name].add(number)
        tensors = write_tensors({name: frozenset(numbers) for name, numbers in named.items()})
        choice = Choice("recompute", {"tensors": tensors}) if tensors else None
        return Selection(choice, int(curve.max()), sum(unit.seconds for unit in chosen))


class _Reads:
    """Who writes and reads each storage, and when; operators of a forward by name and number."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.key: dict[int, Key] = {}
        self.position: dict[int, int] = {}
        self.writers: dict[int, list[int]] = defaultdict(list)
        self._last_forward: dict[int, int] = {}
        self._first_backward: dict[int, int] = {}
        self._changed: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._spans = [(r.start, r.stop, r.count) for r in trace.repeats]
        self._scan()

    def _scan(self) -> None:
        phases = [*self._trace.phases, ("end", len(self._trace.events))]
        for (name, start), (_, stop) in pairwise(phases):
            if name == "forward":
                self._forward(start, stop)
            elif name == "backward":
                self._backward(start, stop)

    def _forward(self, start: int, stop: int) -> None:
        counts: Counter[str] = Counter()
        for position in range(start, stop):
            kind, index = self._trace.events[position]
            if kind != Kind.OP:
                continue
            op = self._trace.ops[index]
            name = counted_as(op.name)
            self.key[index], self.position[index] = (name, counts[name]), position
            counts[name] += 1
            for storage in {*op.reads, *op.writes}:
                self._last_forward[storage] = position
            for storage in set(op.writes):
                if storage >= self._trace.resident:
                    self.writers[storage].append(index)
                    self._ends[storage] = stop
                if storage in op.reads:
                    self._changed[storage] = position

    def _backward(self, start: int, stop: int) -> None:
        for position in range(start, stop):
            kind, index = self._trace.events[position]
            if kind == Kind.OP:
                for storage in self._trace.ops[index].reads:
                    if self._ends.get(storage, start) <= start:
                        self._first_backward.setdefault(storage, position)

    def saved(self, death: Curve) -> list[int]:
        return [storage for storage in self.writers if self.is_saved(storage, death)]

    def is_saved(self, storage: int, death: Curve) -> bool:
        """Born in a forward, and read again in its backward."""
        return storage in self._ends and death[storage] > self._ends[storage] and storage in self._first_backward

    def gap(self, storage: int) -> tuple[int, int]:
        return self._last_forward[storage] + 1, self._first_backward.get(storage, 0)

    def changed_after(self, storage: int, position: int) -> bool:
        """Whether someone writes to it in place after the position: its old value is then gone."""
        return self._changed.get(storage, -1) > position and storage >= self._trace.resident

    def weight(self, position: int) -> int:
        for start, stop, count in self._spans:
            if start <= position < stop:
                return count
        return 1


