"""Predicted against measured peaks on the CPU: every recipe, plain and under each strategy alone, first and steady step.

    python benchmarks/accuracy_cpu.py            run what is missing (resumable); results/accuracy_cpu.csv
    python benchmarks/accuracy_cpu.py --check    print the table; exit 1 where a row is off by more than 1 % and 1 MiB

Each row is measured in a fresh process by measure_cpu.py, which shares nothing with the prediction.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from memfit.apply import apply_choices, strategies
from memfit.core.device import Device
from memfit.core.errors import MemfitError
from memfit.core.strategy import Choice
from memfit.plan.checkpointing import Checkpointing
from memfit.plan.explore import Explorer
from memfit.plan.recomputing import Recomputing
from memfit.recipes import load
from memfit.simulate import simulate
from memfit.trace import FakeWorld, fake_job, trace_step
from results_file import append_rows, read_rows

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "accuracy_cpu.csv"
FIELDS = ["target", "settings", "choices", "step", "predicted_bytes", "measured_bytes", "error_percent", "error_bytes", "note"]
CPU = Device("cpu", "cpu", 24 << 30, {"float32": 1e11}, 1e10, overhead_s=2e-6)
MIB = 2**20
TARGETS: dict[str, dict[str, Any]] = {
    "vit-mini": {"batch": 128}, "vit-s16": {"batch": 4}, "vit-base": {"batch": 2}, "resnet18": {"batch": 8},
    "resnet50": {"batch": 4, "image": 128}, "mobilenet-v3": {"batch": 8, "image": 128},
    "efficientnet-b0": {"batch": 8, "image": 128}, "bert-mini": {"batch": 16}, "bert-base": {"batch": 4},
    "gpt-mini": {"batch": 8}, "gpt2": {"batch": 1}, "llama-mini": {"batch": 8},
}


def choices_for(target: str, settings: dict[str, Any]) -> list[list[tuple[str, dict[str, Any]]]]:
    """Plain, and each strategy that serves the job, alone: its gentlest setting, and for those chosen on the trace the
    middle and the smallest selection."""
    explorer = Explorer(load(target, settings), CPU)
    found: list[list[tuple[str, dict[str, Any]]]] = [[]]
    for name, strategy in strategies().items():
        if name in ("checkpoint", "recompute") or strategy.excluded(explorer.fake, CPU):
            continue
        options = strategy.choices(explorer.fake, explorer.plain.trace, CPU)
        found += [[(name, dict(options[0]))]] if options else []
    for family in (Checkpointing, Recomputing):
        picked = [s.choice for s in family(explorer.plain.trace, CPU).selections() if s.choice is not None]
        chosen = [picked[len(picked) // 2], picked[-1]] if picked else []
        found += [[(c.name, dict(c.settings))] for c in {repr(c): c for c in chosen}.values()]
    return found


def predict(target: str, settings: dict[str, Any], choices: list[tuple[str, dict[str, Any]]]) -> tuple[int, int]:
    """First and steady peak, from a fresh fake job."""
    world = FakeWorld()
    fake = fake_job(load(target, settings), world)
    apply_choices(fake, [Choice(name, inner) for name, inner in choices])
    first, steady = (simulate(trace_step(fake, world), CPU).peak.allocated_bytes for _ in range(2))
    return first, steady


def measure(target: str, settings: dict[str, Any], choices: list[tuple[str, dict[str, Any]]]) -> dict[str, int]:
    words = [sys.executable, str(HERE / "measure_cpu.py"), target, json.dumps(settings), json.dumps(choices)]
    result = subprocess.run(words, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(result.stderr.strip().splitlines()[-1][:200] if result.stderr.strip() else "no output")
    return json.loads(result.stdout.strip().splitlines()[-1])


def rows(target: str, settings: dict[str, Any], choices: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    name = " + ".join(one for one, _ in choices) or "plain"
    common = {"target": target, "settings": json.dumps(settings), "choices": json.dumps(choices)}
    try:
        predicted, measured = predict(target, settings, choices), measure(target, settings, choices)
    except (MemfitError, RuntimeError) as error:
        print(target, name, "FAILED", error, flush=True)
        return [{**common, "step": "both", "note": f"FAILED: {error}"}]
    found = []
    truths = (measured["first_bytes"], measured["steady_bytes"])
    for step, guess, truth in zip(("first", "steady"), predicted, truths, strict=True):
        found.append({**common, "step": step, "predicted_bytes": guess, "measured_bytes": truth,
                      "error_percent": round(100 * (guess / truth - 1), 3), "error_bytes": guess - truth})
    shown = [(row["step"], f"{row['measured_bytes'] / MIB:.1f} MiB", row["error_percent"]) for row in found]
    print(target, name, shown, flush=True)
    return found


def read() -> list[dict[str, str]]:
    return read_rows(RESULTS)


def is_off(row: dict[str, str]) -> bool:
    """Off by more than 1 % and by more than 1 MiB, or failed."""
    return bool(row["note"]) or (abs(float(row["error_percent"])) > 1 and abs(int(row["error_bytes"])) > MIB)


def check() -> int:
    found = read()
    off = [row for row in found if is_off(row)]
    for row in off:
        print("OFF", row["target"], row["choices"][:60], row["step"], row["error_percent"], row["error_bytes"], row["note"])
    errors = sorted(abs(float(row["error_percent"])) for row in found if row["error_percent"])
    if errors:
        print(f"{len(found)} rows, {len(off)} off; median error {errors[len(errors) // 2]:.3f} %, "
              f"90th percentile {errors[int(0.9 * len(errors))]:.3f} %, worst {errors[-1]:.2f} %")
    return 1 if off or not found else 0


def main() -> int:
    if "--check" in sys.argv:
        return check()
    done = {(row["target"], row["choices"]) for row in read()}
    for target, settings in TARGETS.items():
        for choices in choices_for(target, settings):
            if (target, json.dumps(choices)) in done:
                continue
            append_rows(RESULTS, FIELDS, rows(target, settings, choices))
    return check()


if __name__ == "__main__":
    sys.exit(main())
