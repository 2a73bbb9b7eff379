"""What one side of a proof leaves behind in its folder, tensor by tensor: nothing is held in memory for it."""

from __future__ import annotations

from pathlib import Path

import torch

from memfit.jobs import Job
from memfit.train.optimizer_state import named_states
from memfit.train.tensor_files import TensorWriter, can_write, write_tensors

GRADIENTS, FIRST_BUFFERS = "gradients.safetensors", "first_buffers.safetensors"
PARAMETERS, STATES, BUFFERS = "parameters.safetensors", "states.safetensors", "buffers.safetensors"


class Gradients:
    """Writes the gradients of one step as they are before clipping; those of an optimizer that steps in backward are
    seen one by one, before they go."""

    def __init__(self, folder: Path, job: Job) -> None:
        self._job = job
        self._names = {id(parameter): name for name, parameter in job.model.named_parameters()}
        self._writer = TensorWriter(folder / GRADIENTS, self._names.values())

    def __enter__(self) -> Gradients:
        self._job.rules.on_parameter_gradient = self.one
        return self

    def __exit__(self, *exception: object) -> None:
        self._job.rules.on_parameter_gradient = None
        self._writer.close()

    def one(self, parameter: torch.Tensor) -> None:
        """The gradient of `parameter` is whole."""
        gradient, name = parameter.grad, self._names.get(id(parameter))
        if gradient is not None and name is not None:
            self._writer.add(name, gradient.to_dense() if gradient.layout != torch.strided else gradient)

    def all(self) -> None:
        """All gradients of the window are there."""
        for parameter in self._job.model.parameters():
            self.one(parameter)


def write_buffers(folder: Path, name: str, job: Job) -> None:
    write_tensors(folder / name, {key: value for key, value in job.model.named_buffers() if can_write(value)})


def write_final(folder: Path, job: Job, *, states: bool) -> None:
    """Parameters, buffers and (if they will be judged) the optimizer's states after the last step."""
    parameters = {name: parameter.detach() for name, parameter in job.model.named_parameters()}
    write_tensors(folder / PARAMETERS, {name: value for name, value in parameters.items() if can_write(value)})
    write_buffers(folder, BUFFERS, job)
    write_tensors(folder / STATES, named_states(job.optimizer, job.model) if states else {})
