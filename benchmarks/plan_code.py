"""`plan.code()` against the session: real plans of eight recipes, run as plain PyTorch where memfit is refused.

    python benchmarks/plan_code.py            run what is missing (resumable); results/plan_code.csv and .md
    python benchmarks/plan_code.py --check    read the results, print them, exit 1 where something does not hold

Three processes a case: one plans, writes the code and pickles the job; one trains three batches with the plan's session;
one, without memfit, trains the same batches with the code. Peaks (profiler's memory events over what was resident) are
within 1 % in every step; losses, parameters, gradients, buffers and optimizer state are `torch.equal`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from machine import heading, table
from results_file import append_rows, read_rows

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "plan_code.csv"
COMPARED = ("losses", "parameters", "gradients", "buffers", "optimizer")
FIELDS = ["target", "settings", "budget", "fidelity", "form", "strategies", "plan_fidelity", "outcome", "plain_bytes",
          "budget_bytes", "predicted_bytes", "session_peak_bytes", "code_peak_bytes", "first_session_peak_bytes",
          "first_code_peak_bytes", "worst_difference", "unequal", "code_lines", "took_s"]
TOLERANCE = 0.01
Case = dict[str, Any]

TARGETS: Mapping[str, dict[str, int]] = {
    "vit-mini": {"batch": 128}, "vit-s16": {"batch": 8}, "resnet18": {"batch": 64, "image": 128},
    "mobilenet-v3": {"batch": 16, "image": 160}, "efficientnet-b0": {"batch": 8, "image": 160},
    "bert-mini": {"batch": 32, "seq": 128}, "gpt-mini": {"batch": 8, "seq": 128}, "llama-mini": {"batch": 8, "seq": 256},
}
BUDGETS = (("50%", "resampled"), ("75%", "bitwise"), ("50%", "reduced"))
HIGHER = {("resnet18", "resampled"): "70%"}  # BatchNorm bars micro-batches, and convolutions must be kept
CASES: list[Case] = [
    {"target": target, "settings": settings, "budget": HIGHER.get((target, fidelity), budget), "fidelity": fidelity}
    for budget, fidelity in BUDGETS for target, settings in TARGETS.items()]


def run(case: Case) -> dict[str, Any]:
    """One case as a row. `outcome` is `same`, `DIFFERENT` or `FAILED` where there is a plain form."""
    began = time.perf_counter()
    row = {**{name: case[name] for name in ("target", "budget", "fidelity")}, "settings": json.dumps(case["settings"])}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "case.json").write_text(json.dumps(case))
        try:
            row |= _sides(folder)
        except subprocess.CalledProcessError as error:
            row |= {"outcome": "FAILED", "unequal": error.stderr.strip().splitlines()[-1][:300]}
    return {**row, "took_s": round(time.perf_counter() - began, 1)}


def _sides(folder: Path) -> dict[str, Any]:
    _python("plan_code_session.py", "make", str(folder))
    made = json.loads((folder / "made.json").read_text())
    if made.get("fidelity"):
        made["plan_fidelity"] = made.pop("fidelity")
    if made["form"] != "plain":
        return {**made, "outcome": made["form"]}
    _python("plan_code_session.py", "train", str(folder))
    _python("plan_code_steps.py", str(folder))
    session, code = (torch.load(folder / name, weights_only=False) for name in ("session.pt", "code.pt"))
    return {**made, **compared(session, code)}


def _python(script: str, *words: str) -> None:
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "2", "KINETO_LOG_LEVEL": "99"}
    subprocess.run([sys.executable, str(HERE / script), *words], check=True, capture_output=True, text=True,
                   env=environment)


def compared(session: dict[str, Any], code: dict[str, Any]) -> dict[str, Any]:
    """Peaks of all steps, and which parts of the results differ in a bit."""
    worst = max(abs(a - b) / b for a, b in zip(code["peaks"], session["peaks"], strict=True))
    unequal = [f"{part}{path}" for part in COMPARED for path in differences(session[part], code[part])]
    return {"session_peak_bytes": session["peaks"][-1], "code_peak_bytes": code["peaks"][-1],
            "first_session_peak_bytes": session["peaks"][0], "first_code_peak_bytes": code["peaks"][0],
            "worst_difference": f"{worst:.6f}", "unequal": " ".join(unequal[:5]),
            "outcome": "same" if not unequal and worst <= TOLERANCE else "DIFFERENT"}


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two trees of tensors and plain values are not the same."""
    if type(one) is not type(other):
        yield path
    elif isinstance(one, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape or not torch.equal(one, other):
            yield path
    elif isinstance(one, Mapping):
        yield from (path for _ in [0] if list(one) != list(other))
        for key in set(one) & set(other):
            yield from differences(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, (list, tuple)):
        yield from (path for _ in [0] if len(one) != len(other))
        for place, (a, b) in enumerate(zip(one, other)):
            yield from differences(a, b, f"{path}[{place}]")
    elif one != other:
        yield path


def read() -> list[dict[str, str]]:
    return read_rows(RESULTS)


def add(row: dict[str, Any]) -> None:
    append_rows(RESULTS, FIELDS, [row])
    print({name: row.get(name) for name in ("target", "budget", "fidelity", "strategies", "outcome", "worst_difference",
                                            "unequal", "took_s")}, flush=True)


def write_page(rows: list[dict[str, str]]) -> None:
    """The results as Markdown."""
    cells = [[row["target"], row["settings"].strip("{}").replace('"', ""), row["budget"], row["fidelity"],
              row["strategies"], row["outcome"], _mib(row["plain_bytes"]), _mib(row["session_peak_bytes"]),
              _mib(row["code_peak_bytes"]), row["worst_difference"] or "-"] for row in rows]
    head = ["recipe", "settings", "budget", "fidelity allowed", "strategies", "outcome", "plain MiB", "session MiB",
            "code MiB", "worst difference of a step's peak"]
    lines = heading("plan.code() against the session", "python benchmarks/plan_code.py")
    RESULTS.with_suffix(".md").write_text("\n".join([*lines, *table(head, cells), ""]))


def _mib(text: str) -> str:
    return f"{int(text) / 2**20:.1f}" if text else "-"


def check() -> int:
    """Print the rows; 1 where code and session differ, or fewer than eight recipes were compared."""
    rows = read()
    for row in rows:
        print(f"{row['target']:16s} {row['budget']:>4s} {row['fidelity']:10s} {row['outcome']:12s} "
              f"{row['worst_difference']:>9s} {row['strategies']} {row['unequal']}")
    same = [row for row in rows if row["outcome"] == "same"]
    asked = {row["target"] for row in rows if row["outcome"] in ("same", "needs memfit") and row["fidelity"] == "resampled"}
    bad = [row for row in rows if row["outcome"] in ("DIFFERENT", "FAILED")]
    need = sum(row["outcome"] == "needs memfit" for row in rows)
    print(f"{len(rows)} cases: {len(same)} the same as the session, {need} need memfit, {len(bad)} bad; "
          f"{len(asked)} recipes at the default fidelity")
    return 1 if bad or len(asked) < len(TARGETS) else 0


def main() -> int:
    if "--check" in sys.argv:
        return check()
    done = {(row["target"], row["budget"], row["fidelity"]) for row in read()}
    for case in CASES:
        if (case["target"], case["budget"], case["fidelity"]) not in done:
            add(run(case))
    write_page(read())
    return check()


if __name__ == "__main__":
    sys.exit(main())
