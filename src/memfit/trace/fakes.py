"""A fake copy of a job: the same modules and optimizer over tensors that have shapes and no memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from memfit.core.errors import MemfitError, Untraceable
from memfit.jobs import Job, batches
from memfit.jobs.blame import users_line
from memfit.jobs.job import check_optimizer, make_optimizer
from memfit.trace import values
from memfit.trace.building import converting, quiet_failures, random_states_kept, unrecognised
from memfit.trace.cuda import CudaTarget
from memfit.trace.cuda.devices import counters_on_host
from memfit.trace.cuda.scope import cuda_semantics
from memfit.trace.recorder import RecordingMode


class FakeWorld:
    """One fake tensor mode and what it has converted. Real storages map to fake ones once, so ties and views stay.

    `target` is the card whose kernels and types the tensors act by; None is the CPU.
    """

    def __init__(self, target: CudaTarget | None = None) -> None:
        self.target = target
        self.mode = RecordingMode(target)
        self._bases: dict[int, torch.Tensor] = {}
        self._kept: list[Any] = []  # a real tensor's id is reused after it dies: keep what was converted

    def tensor(self, real: torch.Tensor) -> torch.Tensor:
        """The fake of a real tensor: same shape, strides, dtype; same storage as the fakes of its views."""
        if self.mode.is_our_fake(real):
            return real
        if type(real) not in (torch.Tensor, nn.Parameter) or real.layout != torch.strided or real.device.type == "meta":
            return self.mode.from_tensor(real)
        with self.mode.silent():
            fake = self._base(real).as_strided(real.size(), real.stride(), real.storage_offset())
        fake = fake.detach()
        if isinstance(real, nn.Parameter):
            return nn.Parameter(fake, requires_grad=real.requires_grad)
        if not real.is_floating_point():
            values.keep(fake, real)
        return fake.requires_grad_(real.requires_grad) if real.requires_grad else fake

    def _base(self, real: torch.Tensor) -> torch.Tensor:
        storage = real.untyped_storage()
        base = self._bases.get(storage._cdata)
        if base is None:
            elements = storage.nbytes() // real.element_size()
            base = torch.empty(elements, dtype=real.dtype, device="cpu")
            self._bases[storage._cdata] = base
            self._kept.append(storage)
        if base.dtype != real.dtype:
            return base.view(real.dtype)
        return base

    @contextmanager
    def building(self) -> Iterator[None]:
        """Inside, tensors that are made are fake, modules can be converted (`.half()`), and random states are kept."""
        with self.semantics(), quiet_failures(), random_states_kept(), converting(), unrecognised(), self.mode:
            yield

    def semantics(self) -> AbstractContextManager[None]:
        """Inside, operators act as on the target."""
        return cuda_semantics(self.target)

    def copy(self, thing: Any, memo: dict[int, Any]) -> Any:
        """A deep copy in which every tensor is fake; `memo` carries what was copied before."""
        with self.mode.silent(), _FakingDeepCopy(self):
            return copy.deepcopy(thing, memo)


class _FakingDeepCopy(TorchFunctionMode):
    """Makes `copy.deepcopy` of any tensor give its fake, so that the copy allocates nothing."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__()
        self._world = world

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__:
            real, memo = args
            fake = self._world.tensor(real)
            memo[id(real)] = fake
            return fake
        return func(*args, **(kwargs or {}))


def fake_job(job: Job, world: FakeWorld) -> Job:
    """The job over fake tensors. A model or optimizer given as a function is made fake; live ones are mirrored
    without copying their memory. Raises Untraceable if the model can neither be built nor copied fake."""
    memo: dict[int, Any] = {}
    with world.building():
        model = _fake_model(job, world, memo)
        optimizer = _fake_optimizer(job, world, model, memo)
        if world.target is not None:
            counters_on_host(optimizer)
        batch = batches.map_tensors(job.batch, world.tensor)
    check_optimizer(model, optimizer)
    fake = Job(model, job.loss, batch, optimizer, data=None, evaluate=job.evaluate, clip_norm=job.clip_norm,
               weight=job.weight, zero_grad=job.zero_grad)
    fake.name = job.name
    fake.rules = replace(job.rules, release=None, scaling=None, on_parameter_gradient=None)  # those are of the real tensors
    return fake


def _fake_model(job: Job, world: FakeWorld, memo: dict[int, Any]) -> nn.Module:
    source = job.model_source
    if not isinstance(source, nn.Module):
        return _built_fake(source)
    for tensor in [*source.parameters(), *source.buffers()]:
        memo[id(tensor)] = world.tensor(tensor)
        if tensor.grad is not None:
            memo[id(tensor)].grad = world.tensor(tensor.grad)
    try:
        model = world.copy(source, memo)
        _scripted_parameters(source, model, memo)
        return model
    except Exception as error:
        raise Untraceable(f"the model {type(source).__name__} cannot be copied: {_first_line(error)}",
                          "give the job a function that makes the model") from error


def _scripted_parameters(source: nn.Module, model: nn.Module, memo: dict[int, Any]) -> None:
    """TorchScript copies its modules below Python, parameters as clones: put the fakes in their place."""
    for real, fake in zip(source.modules(), model.modules(), strict=True):
        if isinstance(real, torch.jit.ScriptModule):
            for name, parameter in real._parameters.items():
                scripted: Any = fake._c
                scripted.setattr(name, memo[id(parameter)])


def _built_fake(source: Any) -> nn.Module:
    try:
        made = source()
    except MemfitError:
        raise
    except Exception as error:
        line = users_line(error)
        advice = "if it works on real tensors, give the job a live model instead of a function"
        raise Untraceable(f"the model's function failed on fake tensors: {_first_line(error)}",
                          f"see {line}; {advice}" if line else advice) from error
    if not isinstance(made, nn.Module):
        raise Untraceable(f"the job's model function gave {type(made).__name__}, not a torch.nn.Module")
    return made


def _fake_optimizer(job: Job, world: FakeWorld, model: nn.Module, memo: dict[int, Any]) -> torch.optim.Optimizer:
    source = job.optimizer_source
    if not isinstance(source, torch.optim.Optimizer):
        return make_optimizer(source, model)
    if isinstance(job.model_source, nn.Module):
        check_optimizer(job.model_source, source)
    copied = world.copy(source, memo)
    for name, value in vars(source).items():  # a copy of an optimizer has groups and states; some read more than those
        if isinstance(value, (bool, int, float, str)):
            vars(copied).setdefault(name, value)
    return copied


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}"
