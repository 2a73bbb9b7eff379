"""The peers' peaks on the frontier's jobs, and whether their result is plain's: results/frontier_peers.csv (resumable).

    python benchmarks/frontier_peers.py

Each (job, method) runs in a fresh process. Same result: loss and each gradient within 1e-5 of plain's with dropout off
(relative L2; a gradient below 1e-6 of the whole one's norm counts against the whole), buffers within 1e-6.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from peers import COMPILED
from results_file import append_rows, read_rows
from side_by_side import Failed, looked

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "frontier_peers.csv"
FIELDS = ["job", "method", "peak_bytes", "resident_bytes", "same_result", "gradient_difference", "buffer_difference", "note"]
_CHECKPOINTS = ("plain", "checkpoint", "selective")
METHODS = {
    "J1": ("plain", "checkpoint", "backward-step", "autocast", "adamw-8bit", "compile"),
    "J2": (*_CHECKPOINTS, "micro-2", "micro-4", "micro-8", "micro-4+checkpoint", "micro-8+checkpoint",
           "micro-4+checkpoint+backward-step", "micro-8+checkpoint+backward-step", "autocast", "adamw-8bit", "compile",
           *COMPILED),
    "J3": (*_CHECKPOINTS, "micro-4", "micro-8", "checkpoint+backward-step", "micro-8+checkpoint", "autocast"),
    "J4": (*_CHECKPOINTS, "micro-2", "micro-4", "checkpoint+backward-step", "micro-4+checkpoint", "autocast"),
    "J5": (*_CHECKPOINTS, "backward-step", "autocast", "adamw-8bit", "compile", *COMPILED),
    "J2b1": (*_CHECKPOINTS, "backward-step", "checkpoint+backward-step"),
    "J4b1": (*_CHECKPOINTS, "backward-step", "checkpoint+backward-step"),
}
_TIMEOUT_S = 400


def look(job: str, method: str, folder: Path) -> dict[str, Any]:
    """One row: a peer's peak and how far its result is from plain's, whose file lies in the folder."""
    path = folder / f"{job}-{method}.pt"
    row: dict[str, Any] = {"job": job, "method": method}
    try:
        row.update(looked({**row, "path": str(path)}, _TIMEOUT_S))
    except Failed as failed:
        return {**row, "note": str(failed)}
    row.update(differences(torch.load(folder / f"{job}-plain.pt"), torch.load(path)))
    if method != "plain":
        path.unlink()
    return row


def differences(plain: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Relative L2 differences of two results, and whether they count as the same."""
    whole = torch.stack([g.norm() for g in plain["gradients"].values()]).norm()
    worst = 0.0 if plain["gradients"].keys() == other["gradients"].keys() else float("inf")
    for name, one in plain["gradients"].items():
        if name in other["gradients"]:
            scale = one.norm() if one.norm() > 1e-6 * whole else whole
            worst = max(worst, float((other["gradients"][name] - one).norm() / scale))
    loss = float((other["loss"] - plain["loss"]).abs() / plain["loss"].abs())
    buffers = max((_apart(b, other["buffers"][n]) for n, b in plain["buffers"].items()), default=0.0)
    same = worst <= 1e-5 and loss <= 1e-5 and buffers <= 1e-6
    return {"same_result": same, "gradient_difference": f"{max(worst, loss):.1e}", "buffer_difference": f"{buffers:.1e}"}


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((other.double() - one.double()).norm() / one.double().norm().clamp_min(1e-12))


def read() -> list[dict[str, str]]:
    return read_rows(RESULTS)


def add(row: dict[str, Any]) -> None:
    append_rows(RESULTS, FIELDS, [row])
    print(row, flush=True)


def main() -> None:
    wanted = sys.argv[1:] or list(METHODS)
    done = {(row["job"], row["method"]) for row in read()}
    for job in wanted:
        with tempfile.TemporaryDirectory() as folder:
            missing = [method for method in METHODS[job] if (job, method) not in done]
            if missing and "plain" not in missing:
                look(job, "plain", Path(folder))
            for method in missing:
                add(look(job, method, Path(folder)))


if __name__ == "__main__":
    main()
