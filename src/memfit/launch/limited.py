"""A worker under a limit that is to live if it can: first with the fast allocator, then with the exact one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memfit.launch.children import Event, WorkerResult, run_worker

EXACT_NOTE = ("under this limit each large block had to be mapped by itself, which is slower: with the faster "
              "allocator the process needs more than its tensors, and the limit was met")


def run_limited(module: str, spec: Mapping[str, Any], *, on_event: Callable[[Event], None] | None = None,
                again: Callable[[], Mapping[str, Any]] | None = None, **options: Any) -> WorkerResult:
    """`run_worker`; where `spec["enforce"]` is set and the limit was met, once more with exact allocation.

    The fast allocator needs up to 1.4 of the tensors where block sizes fit badly, and a limit leaves 1.1. Before the
    second run `on_event` hears `restarted`; its spec is `again()` (default: the same) with `exact` set, for the worker
    to note. Other arguments are `run_worker`'s.
    """
    limited = bool(spec.get("enforce"))
    first = run_worker(module, spec, on_event=on_event, limited=limited, **options)
    if not limited or not first.out_of_memory or first.interrupted:
        return first
    if on_event is not None:
        on_event({"kind": "restarted", "why": EXACT_NOTE})
    fresh = {**(again() if again is not None else spec), "exact": True}
    return run_worker(module, fresh, on_event=on_event, limited=True, exact=True, **options)
