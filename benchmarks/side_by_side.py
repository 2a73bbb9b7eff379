"""Steps of several methods timed in turn, each method in a process of its own (`frontier_worker.py`), so that what else the
machine does falls on all of them alike."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memfit.launch import MEASURING, settled_environment

HERE = Path(__file__).parent
Times = dict[str, list[dict[str, float]]]


@dataclass(frozen=True)
class Side:
    """One method: the worker's spec, and whether its allocator is settled (else as the C library has it)."""

    name: str
    spec: Mapping[str, Any]
    settled: bool = True


class Failed(Exception):
    """A worker ended before it was done; the message is its last line."""


def looked(spec: Mapping[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
    """What a worker sees of a method's step (its peak); the step's result is in the file `path` of the spec. Raises Failed."""
    command = [sys.executable, str(HERE / "frontier_worker.py"), json.dumps({**spec, "what": "look"})]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s,
                             env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {timeout_s} s") from None
    if ran.returncode:
        raise Failed((ran.stderr.strip().splitlines() or ["?"])[-1][:200])
    return json.loads(ran.stdout.strip().splitlines()[-1])


def in_turn(sides: Sequence[Side], rounds: int, environment: Mapping[str, str] = MEASURING) -> Times:
    """Seconds of each side's steps, `rounds` of them after two warm ones; the order is turned each round."""
    workers = [_Worker(side, environment) for side in sides]
    try:
        for worker in workers:  # one after the other: warm steps are not to starve each other
            worker.wait()
        times: Times = {side.name: [] for side in sides}
        for turn in range(rounds):
            place = turn % len(workers)
            for worker in (*workers[place:], *workers[:place]):
                times[worker.side.name].append(worker.step())
        return times
    finally:
        for worker in workers:
            worker.end()


def ratio(times: Times, one: str, other: str, what: str = "thread_s") -> tuple[float, float, float]:
    """Median of the rounds' ratios, and its 95 % interval (bootstrap, seeded)."""
    pairs = [a[what] / b[what] for a, b in zip(times[one], times[other], strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(2000))
    return statistics.median(pairs), medians[49], medians[1949]


class _Worker:
    def __init__(self, side: Side, environment: Mapping[str, str]) -> None:
        self.side = side
        base = {**os.environ, **environment}
        environment = settled_environment(base) if side.settled else base
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "frontier_worker.py"), json.dumps({**side.spec, "what": "time"})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def wait(self) -> None:
        """Until the warm steps are done."""
        self._answer()

    def step(self) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None and self._process.stderr is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise Failed(f"{self.side.name}: {(self._process.stderr.read().strip().splitlines() or ['?'])[-1][:200]}")
