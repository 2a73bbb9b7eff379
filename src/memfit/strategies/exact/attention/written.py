"""Where a step writes attention out: product, scale, mask, softmax, dropout, product; nothing else reads what is between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from memfit.core.trace import Op, Trace

_PRODUCTS = ("bmm", "baddbmm")
_TO_SOFTMAX = ("mul", "mul_", "div", "div_", "add", "add_", "masked_fill", "masked_fill_", "where", "_to_copy", "clone",
               "copy_")
_FROM_SOFTMAX = ("_to_copy", "clone", "copy_", "native_dropout", "mean")
_DRAWN = "bernoulli_"  # on a CPU dropout multiplies by what it drew
_MULTI_HEAD = "mean"  # of the weights over heads, which nobody need read
_SOFTMAX = "_softmax"


def written_attention(trace: Trace) -> list[str]:
    """Paths of the modules whose own operators are an attention, in the order of their first."""
    forward = [op for op in trace.ops if op.phase == "forward"]
    made: dict[int, list[Op]] = defaultdict(list)
    read: dict[int, list[Op]] = defaultdict(list)
    for op in forward:
        for index in op.writes:
            made[index].append(op)
        for index in set(op.reads):
            read[index].append(op)
    found: dict[str, None] = {}
    for op in forward:
        if op.name == _SOFTMAX and _from_product(op, made) and _to_product(op, made, read):
            found.setdefault(op.module)
    return list(found)


def _from_product(softmax: Op, made: dict[int, list[Op]]) -> bool:
    """Whether what goes into the softmax is a product, scaled and masked."""
    waiting, seen = list(softmax.reads), set(softmax.writes)
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        for op in made[index]:
            if op.name in _PRODUCTS:
                return True
            if op.name in _TO_SOFTMAX and op.module == softmax.module:
                waiting.extend(op.reads)
    return False


def _to_product(softmax: Op, made: dict[int, list[Op]], read: dict[int, list[Op]]) -> bool:
    """Whether the weights, dropped and cast, go into one product and nowhere else."""
    products, waiting, seen = 0, list(softmax.writes), set(softmax.reads)
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        for op in _others(read[index], softmax):
            if op.name in _PRODUCTS:
                products += 1
            elif op.name not in _FROM_SOFTMAX and not _drops(op, made):
                return False
            elif op.name != _MULTI_HEAD or any(_others(read[one], op) for one in op.writes):
                waiting.extend(op.writes)
    return products == 1


def _drops(op: Op, made: dict[int, list[Op]]) -> bool:
    return op.name == "mul" and any(maker.name == _DRAWN for index in op.reads for maker in made[index])


def _others(ops: Iterable[Op], this: Op) -> list[Op]:
    return [op for op in ops if op is not this]
