"""What most of the plain step's peak is, in one line: the word by which people know it, and where it is made."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

from memfit.core.trace import Kind, Trace
from memfit.plan.explore import Candidate
from memfit.report.format import gib, percent
from memfit.simulate import alive_at

_RESIDENT = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer states"}
_LOGITS, _ATTENTION, _MASKS = "logits", "attention weights", "dropout masks"
_SOFTMAX = {"_log_softmax": _LOGITS, "_softmax": _ATTENTION, "_safe_softmax": _ATTENTION}
_DRAWN = frozenset({"bernoulli_", "bernoulli", "native_dropout", "rand_like"})
_TOGETHER = "parameters, gradients and optimizer states"


def dominant(plain: Candidate) -> str:
    """`plain's peak is mostly logits: 1.2 GiB of 2.0 GiB (60 %), most of them made in lm_head`."""
    trace, alive = plain.trace, alive_at(plain.trace, plain.simulation.peak_event)
    kinds = _kinds(trace)
    sizes: Counter[str] = Counter()
    makers: dict[str, Counter[str]] = defaultdict(Counter)
    for index in alive:
        storage = trace.storages[index]
        kind = kinds.get(index) or _RESIDENT.get(storage.category) or storage.category
        sizes[kind] += storage.nbytes
        makers[kind][storage.module] += storage.nbytes
    whole = sum(sizes.values())
    held = sum(sizes[kind] for kind in _RESIDENT.values())
    kind, nbytes = max(sizes.items(), key=lambda item: (item[1], item[0]), default=("nothing", 0))
    if held >= nbytes:
        return f"plain's peak is mostly {_TOGETHER}: {gib(held)} of {gib(whole)} ({percent(held / max(whole, 1))})"
    module = makers[kind].most_common(1)[0][0]
    where = f", most of them made in {module}" if module else ""
    return f"plain's peak is mostly {kind}: {gib(nbytes)} of {gib(whole)} ({percent(nbytes / max(whole, 1))}){where}"


def _kinds(trace: Trace) -> dict[int, str]:
    """Storages that people know by a name of their own: as large as a softmax's result, or drawn at random."""
    sizes: dict[int, str] = {}
    drawn: set[int] = set()
    for op in trace.ops:
        if op.name in _SOFTMAX and op.writes:
            sizes.setdefault(_elements(trace, op.writes[0]), _SOFTMAX[op.name])
        if op.name in _DRAWN:
            drawn.update(op.writes[-1:] if op.name == "native_dropout" else op.writes)
    found: dict[int, str] = {}
    for kind, index in trace.events:
        if kind == Kind.BIRTH and trace.storages[index].category in ("activations", "temporaries"):
            name = _MASKS if index in drawn else sizes.get(_elements(trace, index))
            if name:
                found[index] = name
    return found


def _elements(trace: Trace, index: int) -> int:
    return math.prod(trace.storages[index].shape)
