"""Three measured training steps and all that they leave; as a program, the steps of a plan's code without memfit.

    python benchmarks/plan_code_steps.py FOLDER      reads plan.py and job.pickle there, writes code.pt

It needs torch and the model's own library. memfit is refused: its modules cannot be imported, and none is loaded.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

SEED = 20


class Refuse(MetaPathFinder):
    """Makes `import memfit` fail, wherever it is installed."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.partition(".")[0] == "memfit":
            raise ModuleNotFoundError(f"refused: {fullname}")


def trained(
    step: Callable[[Any], torch.Tensor], model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[Any]
) -> dict[str, Any]:
    """Train a step on each batch: losses and peaks (bytes) of the steps, and parameters, buffers, gradients and
    optimizer state after them."""
    losses, peaks = [], []
    for number, batch in enumerate(batches):
        torch.manual_seed(SEED + number)
        resident = resident_bytes(model, optimizer, batch)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            losses.append(step(batch))
        peaks.append(resident + highest_sum(profiler))
    return {"losses": losses, "peaks": peaks, "parameters": dict(model.named_parameters()),
            "buffers": dict(model.named_buffers()), "optimizer": optimizer.state_dict(),
            "gradients": {name: one.grad for name, one in model.named_parameters()}}


def resident_bytes(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> int:
    """Bytes of the distinct storages that are there before a step."""
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    held = leaves([list(model.parameters()), list(model.buffers()), gradients, batch, list(optimizer.state.values())])
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in held}.values())


def leaves(tree: Any) -> Iterator[torch.Tensor]:
    """Tensors in dicts, lists and tuples."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for inner in tree.values():
            yield from leaves(inner)
    elif isinstance(tree, (list, tuple)):
        for inner in tree:
            yield from leaves(inner)


def highest_sum(profiler: Any) -> int:
    """The highest running sum of the profiler's memory events."""
    current = highest = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            highest = max(highest, current)
    return highest


def module_of(path: Path) -> ModuleType:
    """The plan's code, executed as a module of its own (dataclasses look their module up)."""
    module = ModuleType("plan_as_code")
    sys.modules[module.__name__] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def main(folder: Path) -> None:
    torch.set_num_threads(2)
    sys.meta_path.insert(0, Refuse())
    job = pickle.loads((folder / "job.pickle").read_bytes())
    step = module_of(folder / "plan.py").make_step(job["model"], job["loss"], job["optimizer"])
    found = trained(step, job["model"], job["optimizer"], job["batches"])
    assert not [name for name in sys.modules if name.partition(".")[0] == "memfit"], "memfit is loaded"
    torch.save(found, folder / "code.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
