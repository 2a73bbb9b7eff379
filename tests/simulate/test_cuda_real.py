"""Compared with PyTorch's own allocator: recorded decisions of three versions, and those of the installed one.

The real allocator runs without a GPU on a CUDA runtime that only keeps books (real_allocator.cpp). This covers what
public traces do not: memory running out, retries, garbage collection, expandable segments, streams, max_split_size.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from allocator_requests import SETTINGS, devices, requests, simulated

from memfit.simulate.cuda_blocks import Ties

RECORDED = Path(__file__).parents[1] / "data" / "real_allocator.json.gz"
SOURCE = Path(__file__).with_name("real_allocator.cpp")


def recorded() -> list[dict]:
    return json.loads(gzip.decompress(RECORDED.read_bytes()))["runs"]


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1", "2.14.0"])
def test_recorded_decisions_of(version: str) -> None:
    runs = [run for run in recorded() if run["version"] == version]
    assert len(runs) >= 8
    for run in runs:
        script = [tuple(request) for request in run["requests"]]
        rows = simulated(script, run["settings"], run["capacity"], run["total"], Ties.of_version(version))
        assert differences(rows, undo(run["changes"]), script) == "", run["settings"]


def test_the_recorded_runs_are_hard() -> None:
    ends = [undo(run["changes"])[-1] for run in recorded()]
    assert sum(row[-1] for row in ends) > 100, "memory runs out"
    assert sum(row[-2] for row in ends) > sum(row[-1] for row in ends), "some retries succeed"


@pytest.mark.slow
def test_the_installed_version(tmp_path: Path) -> None:
    program = build(tmp_path)
    ties = Ties.of_version(importlib.metadata.version("torch"))
    for seed in range(8):
        capacity, total = devices(seed)
        script = requests(seed, 200)
        for settings in SETTINGS:
            real = ask(program, settings, capacity, total, script)
            assert differences(simulated(script, settings, capacity, total, ties), real, script) == "", settings


def ask(program: Path, settings: str, capacity: int, total: int, script: list[tuple[str, ...]]) -> list[list[int]]:
    """The real allocator's answers."""
    result = subprocess.run([str(program), str(capacity), str(total)], text=True, capture_output=True, check=True,
                            input="".join(" ".join(request) + "\n" for request in script),
                            env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings})
    return [[int(number) for number in line.split()] for line in result.stdout.splitlines()]


def build(folder: Path) -> Path:
    """Compile real_allocator.cpp against the installed torch; skip where that is not a CUDA build or no compiler is."""
    torch, triton = importlib.util.find_spec("torch"), importlib.util.find_spec("triton")
    compiler = shutil.which("g++")
    if torch is None or torch.origin is None or triton is None or triton.origin is None or compiler is None:
        pytest.skip("needs a CUDA build of torch, triton's headers and g++")
    root, headers = Path(torch.origin).parent, Path(triton.origin).parent / "backends" / "nvidia" / "include"
    runtime = next(iter(root.parent.glob("nvidia/*/lib/libcudart.so.*")), None)
    if not (root / "lib" / "libc10_cuda.so").exists() or runtime is None or not (headers / "crt").exists():
        pytest.skip("torch is no CUDA build, or the CUDA headers are not there")
    program = folder / "real_allocator"
    command = [compiler, "-std=c++20", "-O1", "-w", "-rdynamic", f"-I{root}/include", f"-I{headers}",
               f"-I{runtime.parents[1]}/include", str(SOURCE), f"-L{root}/lib", "-lc10_cuda", "-lc10", str(runtime),
               f"-Wl,-rpath,{root}/lib:{runtime.parent}", "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"does not compile here: {built.stderr.strip().splitlines()[-1] if built.stderr else ''}")
    return program


def differences(mine: list[list[int]], real: list[list[int]], script: list[tuple[str, ...]]) -> str:
    """The first request that was answered otherwise."""
    assert len(mine) == len(real)
    for index, (one, other) in enumerate(zip(mine, real)):
        if one != other:
            return f"request {index} {script[index]}: simulated {one}, real {other}"
    return ""


def undo(changes: list[list[int]]) -> list[list[int]]:
    """Rows from their changes: the address as it is, the statistics as what was added."""
    rows, figures = list[list[int]](), [0] * (len(changes[0]) - 1)
    for address, *added in changes:
        figures = [figure + change for figure, change in zip(figures, added)]
        rows.append([address, *figures])
    return rows
