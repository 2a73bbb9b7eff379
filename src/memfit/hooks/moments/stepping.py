"""Adam's step where moments are coded, a stretch of a parameter at a time: decoded moments exist for one stretch only."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.hooks.moments.codecs import Codec

MOMENTS = ("exp_avg", "exp_avg_sq")
Codecs = tuple[Codec, Codec]
State = MutableMapping[str, Any]
Noise = Sequence[torch.Tensor | None]  # for each moment


@dataclass(frozen=True)
class Rule:
    """One step of Adam for one parameter, by its group and by how many steps it has made with this one."""

    decay: float  # what the parameter is multiplied by
    penalty: float  # times the parameter, added to its gradient
    beta1: float
    beta2: float
    eps: float
    step_size: float
    correction: float
    sign: float

    @classmethod
    def of(cls, group: Mapping[str, Any], steps: float, decoupled: bool) -> Rule:
        """As `torch.optim.Adam` and `AdamW` compute it."""
        beta1, beta2 = (float(beta) for beta in group["betas"])
        lr, decay = float(group["lr"]), float(group["weight_decay"])
        return cls(1 - lr * decay if decoupled else 1.0, 0.0 if decoupled else decay, beta1, beta2, float(group["eps"]),
                   lr / (1 - beta1**steps), (1 - beta2**steps) ** 0.5, -1.0 if group["maximize"] else 1.0)

    def update(self, parameter: torch.Tensor, grad: torch.Tensor, mean: torch.Tensor, square: torch.Tensor) -> None:
        """Step `parameter` and both moments (float32 all), in place."""
        if self.sign < 0:
            grad = -grad
        if self.decay != 1.0:
            parameter.mul_(self.decay)
        if self.penalty:
            grad = grad.add(parameter, alpha=self.penalty)
        mean.lerp_(grad, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        denominator = square.sqrt().div_(self.correction).add_(self.eps)
        parameter.addcdiv_(mean, denominator, value=-self.step_size)


def step_parameter(
    parameter: torch.Tensor, grad: torch.Tensor, state: State, codecs: Codecs, rule: Rule, stretch: int, noise: Noise
) -> None:
    """Step a parameter whose moments are coded in `state`."""
    whole = parameter.contiguous()  # a copy where it lies in another order, as after `channels_last`
    numbers, gradient = whole.view(-1), grad.contiguous().view(-1)
    held = [parts_of(state, name, codec) for name, codec in zip(MOMENTS, codecs)]
    for start in range(0, parameter.numel(), stretch):
        stop = min(start + stretch, parameter.numel())
        _step_stretch(numbers[start:stop], gradient[start:stop], codecs, held, rule, (start, stop), noise)
    if whole is not parameter:
        parameter.copy_(whole)


def _step_stretch(
    numbers: torch.Tensor, gradient: torch.Tensor, codecs: Codecs, held: list[dict[str, torch.Tensor]], rule: Rule,
    bounds: tuple[int, int], noise: Noise,
) -> None:
    moments = [codec.read(parts, *bounds) for codec, parts in zip(codecs, held)]
    exact = numbers.float()  # itself where it is float32
    rule.update(exact, gradient.float(), *moments)
    if exact is not numbers:
        numbers.copy_(exact)
    for codec, parts, random in zip(codecs, held, noise):
        codec.write(parts, *bounds, moments.pop(0), random)


def coded(parameter: torch.Tensor, state: State, codecs: Codecs, stretch: int) -> None:
    """Code the float32 moments of `state` (zeros where it has none yet)."""
    for name, codec in zip(MOMENTS, codecs):
        plain = state.pop(name, None)
        parts = codec.zeros(parameter)
        if plain is not None:
            _write_all(codec, parts, plain, stretch)
        state.update({_key(name, part): tensor for part, tensor in parts.items()})


def decoded(parameter: torch.Tensor, state: State, codecs: Codecs, stretch: int) -> None:
    """Put float32 moments (of the parameter's dtype, as Adam has them) in place of coded ones, one after the other."""
    for name, codec in zip(MOMENTS, codecs):
        parts = parts_of(state, name, codec)
        plain = torch.empty_like(parameter, memory_format=torch.contiguous_format)
        numbers = plain.view(-1)
        for start in range(0, parameter.numel(), stretch):
            stop = min(start + stretch, parameter.numel())
            numbers[start:stop].copy_(codec.read(parts, start, stop))
        for part in parts:
            del state[_key(name, part)]
        state[name] = torch.empty_like(parameter).copy_(plain) if plain.stride() != parameter.stride() else plain


def is_coded(state: Mapping[str, Any], codecs: Codecs) -> bool:
    """Whether all parts are there, as this writes them."""
    return all(
        (tensor := state.get(_key(name, part))) is not None and tensor.dtype == wanted and tensor.is_contiguous()
        for name, codec in zip(MOMENTS, codecs) for part, wanted in codec.dtypes.items())


def recast(state: State, codecs: Codecs) -> bool:
    """Give parts that `load_state_dict` has cast to the parameter's dtype their own again; whether all are there."""
    keys = [(_key(name, part), wanted) for name, codec in zip(MOMENTS, codecs) for part, wanted in codec.dtypes.items()]
    if not all(key in state for key, _ in keys):
        return False
    state.update({key: state[key].to(wanted).contiguous() for key, wanted in keys})
    return True


def parts_of(state: Mapping[str, Any], name: str, codec: Codec) -> dict[str, torch.Tensor]:
    return {part: state[_key(name, part)] for part in codec.dtypes}


def _write_all(codec: Codec, parts: Mapping[str, torch.Tensor], plain: torch.Tensor, stretch: int) -> None:
    numbers = plain.contiguous().view(-1)
    for start in range(0, plain.numel(), stretch):
        stop = min(start + stretch, plain.numel())
        values = numbers[start:stop].to(torch.float32, copy=True)
        codec.write(parts, start, stop, values, None)


def _key(name: str, part: str) -> str:
    return f"{name}_{part}" if part else name
