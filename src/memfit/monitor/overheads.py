"""What a training step costs the host for each operator call beyond the kernels: Python of modules, autograd, hooks.

A network so narrow that its kernels take next to nothing is trained; what its phases take is divided by their calls.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

_STEPS = 30
_DEPTH = 6


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow, self.drop = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.narrow(nn.functional.gelu(self.wide(self.norm(x)))))


class _Counting(TorchDispatchMode):
    """Calls that a trace records: those that make or change a storage."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view and func._overloadpacket.__name__ not in ("detach", "alias")
        return func(*args, **(kwargs or {}))


class _Seeing(TorchDispatchMode):
    """Does what recomputation by tensor does for a call that it lets be."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func._overloadpacket.__name__] += func._schema.is_mutable
        return func(*args, **(kwargs or {}))


def call_overheads(small_s: float) -> dict[str, float]:
    """Seconds for a call in `forward`, `backward` and `optimizer` beyond `small_s`, which a small kernel takes; under
    `hooked` what a hook on every operator adds in forward, and under `again` what making a value again adds."""
    model = nn.Sequential(*(_Block() for _ in range(_DEPTH)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.randn(4, 8)
    plain = _phases(model, optimizer, x, nullcontext)
    calls = _calls(model, optimizer, x)
    hooked = _phases(model, optimizer, x, _hooks)
    over = {name: max(0.0, plain[name] / calls[name] - small_s) for name in plain}
    over["hooked"] = max(0.0, (hooked["forward"] - plain["forward"]) / calls["forward"])
    over["again"] = over["forward"] + over["hooked"]
    return over


def _hooks() -> AbstractContextManager[Any]:
    stack = ExitStack()
    stack.enter_context(torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t))
    stack.enter_context(_Seeing())
    return stack


def _phases(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor,
            context: Callable[[], AbstractContextManager[Any]]) -> dict[str, float]:
    """The least seconds of each phase."""
    least: dict[str, float] = {}
    for _ in range(_STEPS):
        marks = [time.thread_time()]
        with context():
            loss = model(x).square().mean()
        marks.append(time.thread_time())
        loss.backward()
        marks.append(time.thread_time())
        optimizer.step()
        marks.append(time.thread_time())
        optimizer.zero_grad(set_to_none=True)
        for place, name in enumerate(("forward", "backward", "optimizer")):
            seconds = marks[place + 1] - marks[place]
            least[name] = min(seconds, least.get(name, seconds))
    return least


def _calls(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> dict[str, int]:
    found: dict[str, int] = {}
    loss = torch.zeros(())

    def forward() -> None:
        nonlocal loss
        loss = model(x).square().mean()

    for name, work in (("forward", forward), ("backward", lambda: loss.backward()), ("optimizer", optimizer.step)):
        with _Counting() as seen:
            work()
        found[name] = max(1, seen.count)
    optimizer.zero_grad(set_to_none=True)
    return found
