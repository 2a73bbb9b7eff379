"""One method of the frontier in a process of its own: `python benchmarks/frontier_worker.py SPEC`, SPEC being JSON.

    {"job": "J2", "method": "micro-4"} or {"job": "J2", "choices": [["fused-step", {}], ...]}
    "what": "look"     one step with dropout off: loss, gradients and buffers into a file at "path"; then the peak tensor
                       bytes of a usual step, by the profiler plus the resident bytes before it
            "time"     answers each line of stdin with the seconds of one step
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import frontier_jobs
from measure_cpu import leaves
from memfit.apply import apply_choices
from memfit.core.strategy import Choice
from memfit.jobs import Job, run_step
from peers import peer_step

_RATES = ("p", "dropout_prob", "attention_probs_dropout_prob", "attn_pdrop")
SECONDS = ("thread_s", "wall_s", "cpu_s")


def main(spec: dict[str, Any]) -> None:
    torch.manual_seed(0)
    job = frontier_jobs.job(spec["job"])
    _ = job.model, job.optimizer
    step = _step_of(job, spec)
    if spec["what"] == "look":
        torch.save(_result(job, step), spec["path"])
        print(json.dumps(_peak(job, step)), flush=True)
    else:
        _timed(step)


def _step_of(job: Job, spec: dict[str, Any]) -> Callable[[], Any]:
    if "choices" in spec:
        apply_choices(job, [Choice(name, settings) for name, settings in spec["choices"]])
        return lambda: run_step(job, job.batch)
    return peer_step(job, spec["method"])


def _timed(step: Callable[[], Any]) -> None:
    """The seconds that the training thread was on a processor (it takes part in all work, so that is what a quiet
    machine would take), those that passed, and those of all threads."""
    step()
    step()
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        marks = time.thread_time(), time.perf_counter(), time.process_time()
        step()
        ends = time.thread_time(), time.perf_counter(), time.process_time()
        print(json.dumps({name: end - mark for name, mark, end in zip(SECONDS, marks, ends, strict=True)}), flush=True)


def _peak(job: Job, step: Callable[[], Any]) -> dict[str, int]:
    step()
    optimizers = [job.optimizer, *job.__dict__.get("peer_optimizers", {}).values()]
    states = [list(state.values()) for one in optimizers for state in one.state.values()]
    seen = {}
    for tensor in _plain_tensors([*job.model.parameters(), *job.model.buffers(), *leaves(job.batch), *leaves(states)]):
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
    resident = sum(seen.values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    current = highest = 0
    for event in profiler.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            current += event.nbytes()
            highest = max(highest, current)
    return {"peak_bytes": resident + highest, "resident_bytes": resident}


def _plain_tensors(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """With those that a tensor subclass (8-bit states) is made of in place of it."""
    for tensor in tensors:
        if hasattr(tensor, "__tensor_flatten__"):
            yield from _plain_tensors(getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        else:
            yield tensor


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Dropout at rate zero inside. Attention has its rate in the config, or as a plain attribute."""
    before: list[tuple[Any, str, float]] = []
    for module in model.modules():
        for owner in (module, getattr(module, "config", None)):
            for name in _RATES:
                rate = getattr(owner, name, None)
                if isinstance(rate, float) and rate > 0:
                    before.append((owner, name, rate))
                    setattr(owner, name, 0.0)
    yield
    for owner, name, rate in reversed(before):
        setattr(owner, name, rate)


def _result(job: Job, step: Callable[[], Any]) -> dict[str, Any]:
    """Loss, gradients and buffers of the first step, dropout off. Gradients are taken as the last part makes them whole:
    some methods drop them before the step ends."""
    gradients: dict[str, torch.Tensor] = {}
    handles = []
    for name, parameter in job.model.named_parameters():
        if parameter.requires_grad:
            handles.append(parameter.register_post_accumulate_grad_hook(functools.partial(_take, gradients, name)))
            hooks = parameter._post_accumulate_grad_hooks
            if hooks is not None:  # before those that step; autograd goes by the order of insertion
                ordered = list(hooks.items())
                hooks.clear()
                hooks.update([ordered[-1], *ordered[:-1]])
    with _without_dropout(job.model):
        out = step()
    for handle in handles:
        handle.remove()
    loss = out if isinstance(out, torch.Tensor) else out.loss
    return {"loss": loss.detach(), "gradients": gradients, "buffers": {n: b.clone() for n, b in job.model.named_buffers()}}


def _take(gradients: dict[str, torch.Tensor], name: str, parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    gradients[name] = parameter.grad.clone()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
