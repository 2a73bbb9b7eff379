"""What the user wants trained."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn

from memfit.core.errors import UsageError
from memfit.jobs.rules import StepRules

ZeroGrad = Literal["after_step", "before_forward", "before_backward"]
LossFunction = Callable[[nn.Module, Any], torch.Tensor]


class Job:
    """A model, its loss, a sample batch and an optimizer.

    Args:
        model: an `nn.Module`, or a function without arguments that makes one (called on first access of `.model`;
            `estimate` and `plan` call it on fake tensors, so its weights are never allocated there).
        loss: `loss(model, batch)` gives a scalar tensor, the mean over what `weight(batch)` counts.
        batch: a sample batch: tensors in dicts, lists, tuples, dataclasses or Hugging Face encodings, nested.
        optimizer: a `torch.optim.Optimizer` over the model's parameters, or a function from parameters to one.
        data: an iterable of batches, or a function of the epoch (an int from 0) that gives one.
        evaluate: `evaluate(model)` gives a dict of floats; called between epochs without a graph.
        clip_norm: global gradient norm to clip to, before the optimizer's step.
        weight: what a batch counts for in the mean loss (a number); found by a probe if left out.
        scheduler: a learning-rate scheduler, or a function from the optimizer to one; stepped once a step.
        zero_grad: where gradients are set to None: `after_step`, `before_forward` or `before_backward`.

    `.model`, `.loss`, `.batch`, `.optimizer` and `.scheduler` are live objects when read. Raises UsageError for
    arguments of the wrong kind.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: LossFunction,
        batch: Any,
        optimizer: torch.optim.Optimizer | Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        *,
        data: Iterable[Any] | Callable[[int], Iterable[Any]] | None = None,
        evaluate: Callable[[nn.Module], dict[str, float]] | None = None,
        clip_norm: float | None = None,
        weight: Callable[[Any], float] | None = None,
        scheduler: Any = None,
        zero_grad: ZeroGrad = "after_step",
    ) -> None:
        _check(model, loss, optimizer, clip_norm, zero_grad)
        self._model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self.loss = loss
        self.batch = batch
        self.data = data
        self.evaluate = evaluate
        self.clip_norm = clip_norm
        self.weight = weight
        self.zero_grad: ZeroGrad = zero_grad
        self.rules = StepRules()
        self.draws_random = False  # whether a traced step of it was seen to
        self.reads_values = False  # likewise: whether a forward's course depended on the values of its batch
        self.name = ""

    @property
    def model(self) -> nn.Module:
        """The live model, made now if it was given as a function."""
        if not isinstance(self._model, nn.Module):
            made = self._model()
            if not isinstance(made, nn.Module):
                raise UsageError(f"the job's model function gave {type(made).__name__}, not a torch.nn.Module",
                                 "return the module from the function")
            self._model = made
        return self._model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The live optimizer, made now (over the live model's parameters) if it was given as a function."""
        if not isinstance(self._optimizer, torch.optim.Optimizer):
            self._optimizer = make_optimizer(self._optimizer, self.model)
        return self._optimizer

    @property
    def scheduler(self) -> Any:
        """The live learning-rate scheduler, or None."""
        if self._scheduler is not None and not hasattr(self._scheduler, "step"):
            self._scheduler = self._scheduler(self.optimizer)
        return self._scheduler

    @property
    def model_source(self) -> nn.Module | Callable[[], nn.Module]:
        """The model as it was given or made: a module, or the function that will make it."""
        return self._model

    @property
    def optimizer_source(self) -> torch.optim.Optimizer | Callable[..., torch.optim.Optimizer]:
        """The optimizer as it was given or made: an instance, or the function that will make it."""
        return self._optimizer

    @property
    def scheduler_source(self) -> Any:
        return self._scheduler


def make_optimizer(
    maker: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], model: nn.Module
) -> torch.optim.Optimizer:
    """`maker(model.parameters())`, checked. Raises UsageError if it gives no optimizer."""
    made = maker(model.parameters())
    if not isinstance(made, torch.optim.Optimizer):
        raise UsageError(f"the job's optimizer function gave {type(made).__name__}, not a torch.optim.Optimizer",
                         "return the optimizer from the function")
    return made


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise UsageError unless something trains and the optimizer holds only parameters of the model."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("the model has no trainable parameter", "set requires_grad on what should be trained")
    if _needs_closure(optimizer):
        raise UsageError(f"{type(optimizer).__name__} runs the step several times through a closure, and memfit runs it once",
                         "take an optimizer whose step() needs no closure, such as AdamW or SGD")
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not held:
        raise UsageError("the optimizer holds no parameter", "build it from model.parameters()")
    foreign = [tuple(parameter.shape) for parameter in held if id(parameter) not in names]
    if foreign:
        raise UsageError(
            f"the optimizer holds {len(foreign)} of {len(held)} parameters that are not the model's "
            f"(first shape {list(foreign[0])})", "build it from the parameters of the model in the job")


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `step` asks for a closure (LBFGS): a parameter of that name without a default."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _check(model: object, loss: object, optimizer: object, clip_norm: float | None, zero_grad: str) -> None:
    if not isinstance(model, nn.Module) and not callable(model):
        raise UsageError(f"model is {type(model).__name__}", "give a torch.nn.Module or a function that makes one")
    if not callable(loss):
        raise UsageError(f"loss is {type(loss).__name__}", "give a function loss(model, batch) -> scalar tensor")
    if not isinstance(optimizer, torch.optim.Optimizer) and not callable(optimizer):
        raise UsageError(f"optimizer is {type(optimizer).__name__}",
                         "give a torch.optim.Optimizer or a function from parameters to one")
    if clip_norm is not None and not clip_norm > 0:
        raise UsageError(f"clip_norm is {clip_norm}", "give a positive norm, or None for no clipping")
    if zero_grad not in ("after_step", "before_forward", "before_backward"):
        raise UsageError(f"zero_grad is {zero_grad!r}", "one of after_step, before_forward, before_backward")
