"""What all sources share: a case, a step without an optimizer, a script's body as a step, tensors that outlive a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

import memfit

Figure = Literal["allocated", "first_allocated", "reserved", "reserved_and_kernels", "process"]
Products = Literal["", "forward", "backward"]
Body = Callable[[nn.Module, Any], None]
CARDS = Path(__file__).with_name("cards.toml")


@dataclass(frozen=True)
class Case:
    """One row as a job.

    `reads`: which figure the source reports: bytes allocated in a steady or a first step, bytes reserved, reserved and
    the kernels loaded meanwhile, or all that the driver counts for the process. `minus_bytes` were there before the
    source began to count. `library` is the version of transformers whose code ran ("": none is used). `torch` is the
    published version of PyTorch. `convolutions`: shown apart, as cuDNN's choice decides; `patches`: only an image's
    patches are convolved. `note`: what had to be inferred. `unlike`: why the published set-up is not the one that was
    measured; such rows are predicted and shown, and counted apart. `or_else`: the job of another set-up that the source
    leaves open, which widens the interval.
    """

    row: str
    device: str
    build: Callable[[], memfit.Job]
    reads: Figure = "allocated"
    library: str = ""
    torch: str = ""
    convolutions: bool = False
    patches: bool = False
    minus_bytes: int = 0
    note: str = ""
    unlike: str = ""
    or_else: Callable[[], memfit.Job] | None = None

    @property
    def convolves(self) -> bool:
        return self.convolutions or self.patches


def own_card(name: str) -> str:
    """A card that the catalogue has in another size only."""
    return f"{CARDS}:{name}"


class NoOptimizer(torch.optim.Optimizer):
    """Gradients are made and nothing is updated; with `keeps_gradients` they are added to for ever."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, keeps_gradients: bool = False) -> None:
        super().__init__(parameters, {})
        self.keeps_gradients = keeps_gradients

    def step(self, closure: Any = None) -> None:
        """Nothing."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not self.keeps_gradients:
            super().zero_grad(set_to_none)


class Script(nn.Module):
    """A module whose step runs the body of a script, whatever that is; 4 numbers of its own give the loss.

    `products`: where the process multiplied matrices before (the libraries' workspaces stay for good).
    """

    def __init__(self, subject: nn.Module, body: Body, products: Products = "") -> None:
        super().__init__()
        self.subject, self.body, self.products = subject, body, products
        self.anchor = nn.Parameter(torch.zeros(2, 2))

    def forward(self, batch: Any) -> torch.Tensor:
        self.body(self.subject, batch)
        if self.products == "backward":
            return (self.anchor @ self.anchor).sum()
        if self.products == "forward":
            torch.mm(self.anchor.detach(), self.anchor.detach())
        return self.anchor.sum()


def script_job(
    make: Callable[[], nn.Module], body: Body, batch: Any = (), *, products: Products = "",
    keeps_gradients: bool = False,
) -> memfit.Job:
    """A job whose step is the body of a script, without an optimizer."""
    return memfit.Job(lambda: Script(make(), body, products), lambda model, inputs: model(inputs), batch,
                      lambda parameters: NoOptimizer(parameters, keeps_gradients=keeps_gradients), zero_grad="before_forward")


class Remembering(nn.Module):
    """A model in a loop whose variable `outputs` holds what the last step gave until the next step has its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self.model(*args, **kwargs)
        found: list[torch.Tensor] = []
        for tensor in tensors_in(outputs):
            if not any(tensor is other for other in found):
                found.append(tensor)
        for place, tensor in enumerate(found):
            self.register_buffer(f"held{place}", tensor, persistent=False)
        return outputs


def tensors_in(thing: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested outputs, caches of keys and values included."""
    if isinstance(thing, torch.Tensor):
        yield thing
    elif isinstance(thing, dict):
        for inner in thing.values():
            yield from tensors_in(inner)
    elif isinstance(thing, (list, tuple)):
        for inner in thing:
            yield from tensors_in(inner)
    elif hasattr(thing, "key_cache"):
        yield from tensors_in([thing.key_cache, thing.value_cache])


def token_ids(batch: int, length: int, vocabulary: int = 100) -> torch.Tensor:
    """int64 [batch, length]."""
    return torch.randint(0, vocabulary, (batch, length))
