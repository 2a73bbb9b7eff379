"""Adam and AdamW with coded moments. A job's own optimizer becomes one of these and goes back (`exchange`): the object, its
groups and its hooks stay, and whatever holds `Adam.step` (schedulers wrap it) leads here by way of `_init_group`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, ClassVar

import torch
from torch.optim import Adam, AdamW

from memfit.hooks.moments.codecs import B_FLOAT_16, EIGHT_BIT, FLOAT_8, FOUR_BIT
from memfit.hooks.moments.stepping import Codecs, Noise, Rule, coded, decoded, is_coded, recast, step_parameter

LEAST_ELEMENTS = 4096
"""Smaller tensors (biases, normalisations) keep float32 moments: they are sensitive, and weigh nothing."""
_LEAST_STRETCH = 1 << 17  # elements: fills two cores, and a few such tensors stay in the caches
_NOISE = 1 << 16  # random numbers a parameter and moment, used again for every so many elements
_PARTS = 64  # of the largest parameter: so decoded moments are small against it


class CodedAdam(Adam):
    """Moments of tensors of `LEAST_ELEMENTS` and more are coded; all others are stepped as ever."""

    codecs: ClassVar[Codecs]
    at_random: ClassVar[bool] = False  # whether the codecs round at random

    def _init_group(
        self, group: dict[str, Any], params_with_grad: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any,
        state_steps: Any,
    ) -> Any:
        """Step what is coded; the others go into the lists, for the step that called."""
        others: list[torch.Tensor] = []
        for parameter in group["params"]:
            if not is_large(parameter):
                others.append(parameter)
            elif parameter.grad is not None:
                self._step_coded(group, parameter.detach(), parameter.grad, self.state[parameter])
        lists = params_with_grad, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps
        return super()._init_group({**group, "params": others}, *lists)

    def code_all(self) -> None:
        """Code the moments that are there, and make ready for those that come."""
        for codec, group in product(self.codecs, self.param_groups):
            for device in {parameter.device for parameter in group["params"]}:
                codec.prepare(device)
        for parameter, state in self._coded_states():
            if "exp_avg" in state and not is_coded(state, self.codecs):
                coded(parameter.detach(), state, self.codecs, self.stretch)

    def decode_all(self) -> None:
        """Float32 moments in place of coded ones, one after the other."""
        for parameter, state in self._coded_states():
            if is_coded(state, self.codecs):
                decoded(parameter.detach(), state, self.codecs, self.stretch)

    @property
    def stretch(self) -> int:
        """Elements that are stepped at a time, a multiple of every block."""
        known = self.__dict__.get("_memfit_stretch", 0)
        if not known:  # as it was made; and so for every step, whichever parameters are in it
            largest = max(parameter.numel() for group in self.param_groups for parameter in group["params"])
            known = self.__dict__["_memfit_stretch"] = max(_LEAST_STRETCH, -(-largest // _PARTS // _NOISE) * _NOISE)
        return known

    def _coded_states(self) -> Iterator[tuple[torch.Tensor, dict[str, Any]]]:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state.get(parameter)
                if state and is_large(parameter):
                    yield parameter, state

    def _step_coded(
        self, group: dict[str, Any], parameter: torch.Tensor, grad: torch.Tensor, state: dict[str, Any]
    ) -> None:
        if grad.is_sparse:
            raise RuntimeError("Adam does not support sparse gradients, please consider SparseAdam instead")
        if not state:
            state["step"] = torch.tensor(0.0, dtype=torch.float32, device="cpu")
        if not is_coded(state, self.codecs) and not recast(state, self.codecs):  # new, or a plain one was loaded
            coded(parameter, state, self.codecs, self.stretch)
        state["step"] += 1
        steps = state["step"].item()
        rule = Rule.of(group, steps, isinstance(self, AdamW) or group.get("decoupled_weight_decay", False))
        noise = _noise(parameter, int(steps)) if self.at_random else (None, None)
        step_parameter(parameter, grad, state, self.codecs, rule, self.stretch, noise)


def _noise(parameter: torch.Tensor, steps: int) -> Noise:
    """The random numbers of one step, drawn anew from its number: nothing to save, and no other draws change."""
    generator = torch.Generator(parameter.device).manual_seed(steps)
    numbers = torch.randint(0, 1 << 16, (2, min(_NOISE, parameter.numel())), generator=generator, dtype=torch.int32,
                            device=parameter.device)
    return numbers.unbind()


def is_large(parameter: torch.Tensor) -> bool:
    """Whether moments of this parameter are coded."""
    return parameter.numel() >= LEAST_ELEMENTS and parameter.is_floating_point()


class Adam8bit(CodedAdam):
    """Adam with moments in 8 bit."""

    codecs = EIGHT_BIT


class AdamW8bit(Adam8bit, AdamW):
    """AdamW with moments in 8 bit."""


class Adam4bit(CodedAdam):
    """Adam with moments in 4 bit."""

    codecs = FOUR_BIT


class AdamW4bit(Adam4bit, AdamW):
    """AdamW with moments in 4 bit."""


class AdamFp8(CodedAdam):
    """Adam with moments in float8."""

    codecs = FLOAT_8


class AdamWFp8(AdamFp8, AdamW):
    """AdamW with moments in float8."""


class AdamBf16(CodedAdam):
    """Adam with moments in bfloat16, rounded at random."""

    codecs = B_FLOAT_16
    at_random = True


class AdamWBf16(AdamBf16, AdamW):
    """AdamW with moments in bfloat16, rounded at random."""
