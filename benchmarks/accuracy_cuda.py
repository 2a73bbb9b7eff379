"""Predicted against published CUDA peaks: 268 measurements that others made, rebuilt from their configurations.

    python benchmarks/accuracy_cuda.py               predict what is missing (resumable); results/accuracy_cuda.{csv,md}
    python benchmarks/accuracy_cuda.py --again [ID]  predict all (or these rows) again
    python benchmarks/accuracy_cuda.py --check       print the table's statistics; exit 1 where they are not good enough

No GPU is needed. The measurements are in data/, the rows' jobs in cuda_rows/, which sees no measured value. Rows whose
code comes from a library get an environment with the version that ran (transformers; torch is the one here); convolutions
of a torch whose cuDNN cannot be asked on such a machine (before 9.8) are put to the oldest that can, those of an unnamed
one to the cuDNN that is here. Both are made once, under ~/.cache/memfit-bench or MEMFIT_BENCH_CACHE.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cuda_rows.statistics import Line, failures, report
from environments import CACHE, beside_this_python
from machine import heading, table

HERE = Path(__file__).parent
DATA, RESULTS = HERE / "data", HERE / "results" / "accuracy_cuda.csv"
FIELDS = ["row", "source", "configuration", "device", "reads", "group", "library", "torch", "measured_bytes",
          "predicted_bytes", "low_bytes", "high_bytes", "error_percent", "took_s", "note", "reason"]
MIB, NOTABLE_PERCENT = 1 << 20, 5.0
OLDEST_CUDNN, ITS_CUBLAS, ASKABLE = "9.8.0.87", "12.8.4.1", 90800
Row = dict[str, str]


def measured() -> dict[str, Row]:
    """`measured_bytes`, source and configuration of every row."""
    found: dict[str, Row] = {}
    for row in csv.DictReader((DATA / "measured_cuda.csv").open()):
        words = (row["model_config"], row["batch"], row["seq_or_image"], row["dtype"], row["optimizer"], row["strategies"])
        found[row["id"]] = {"source": row["source"], "configuration": "; ".join(word for word in words if word),
                            "measured_bytes": str(round(float(row["value_MiB"]) * MIB))}
    for row in csv.DictReader((DATA / "measured_nvml.csv").open()):
        words = (row["model"], f"batch {row['batch']}", row["optimizer"], row["zero_grad_placement"])
        found[row["id"]] = {"source": "xMem", "configuration": "; ".join(words), "measured_bytes": row["measured_bytes"]}
    return found


def libraries(torch_version: str) -> dict[str, str]:
    """Environment variables under which convolutions are put to the cuDNN nearest to that of a version of PyTorch."""
    from memfit.hardware.cudnn import version_of_torch

    version = version_of_torch(torch_version)
    if version is None or version >= ASKABLE:  # not published: as the one here
        return {}
    folders = {}
    for name, package in (("cudnn", f"nvidia-cudnn-cu12=={OLDEST_CUDNN}"), ("cublas", f"nvidia-cublas-cu12=={ITS_CUBLAS}")):
        folders[name] = CACHE / package.rpartition("-cu12==")[0] / package.rpartition("==")[2]
        if not folders[name].exists():
            install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folders[name]), package]
            subprocess.run(install, check=True)
    return {"MEMFIT_CUDNN": str(folders["cudnn"] / "nvidia/cudnn/lib/libcudnn.so.9"),
            "LD_LIBRARY_PATH": str(folders["cublas"] / "nvidia/cublas/lib")}


def work(ids: Iterable[str]) -> None:
    """In an environment's own process: predict rows, one line of JSON each."""
    from cuda_rows import all_cases
    from cuda_rows.prediction import as_dict, predict

    cases = all_cases()
    for row in ids:
        try:
            line: dict[str, Any] = as_dict(predict(cases[row]))
        except Exception as error:
            line = {"failed": f"{type(error).__name__}: {error}"[:300]}
        print("ROW " + json.dumps({"row": row, **line}), flush=True)


def predicted(ids: list[str], library: str, variables: dict[str, str]) -> Iterable[dict[str, Any]]:
    words = [beside_this_python("transformers", library), str(HERE / "accuracy_cuda.py"), "--work", *ids]
    variables = {**os.environ, **variables}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ROW "):
                yield json.loads(line[4:])


def run(wanted: list[str]) -> None:
    """Predict these rows, one process for each set of libraries, keeping the table up to date."""
    from cuda_rows import all_cases

    cases = all_cases()
    groups: dict[tuple[str, str], list[str]] = {}
    for row in (row for row in wanted if row in cases):
        asked = cases[row].torch if cases[row].convolves else ""
        groups.setdefault((cases[row].library, asked), []).append(row)
    for (library, asked), ids in sorted(groups.items()):
        for found in predicted(ids, library, libraries(asked)):
            rows = read()
            rows[found["row"]] = as_row(found, cases[found["row"]])
            write(rows)
            print(rows[found["row"]]["row"], rows[found["row"]]["error_percent"], rows[found["row"]]["reason"], flush=True)


def as_row(found: dict[str, Any], case: Any) -> Row:
    truth = measured()[case.row]
    group = "unlike" if case.unlike else "convolutions" if case.convolutions else "other"
    row = {**truth, "row": case.row, "device": case.device.rpartition(":")[2], "reads": case.reads, "group": group,
           "library": f"transformers {case.library}" if case.library else "", "torch": case.torch, "note": case.note}
    if "failed" in found:
        return {**row, "reason": f"not predicted: {found['failed']}"}
    error = 100 * (found["predicted_bytes"] / int(truth["measured_bytes"]) - 1)
    row |= {key: str(found[key]) for key in ("predicted_bytes", "low_bytes", "high_bytes")}
    return {**row, "error_percent": f"{error:.4f}", "took_s": f"{found['took_s']:.2f}", "reason": case.unlike}


def read() -> dict[str, Row]:
    return {row["row"]: row for row in csv.DictReader(RESULTS.open())} if RESULTS.exists() else {}


def write(rows: dict[str, Row]) -> None:
    """CSV and Markdown; rows in the order of the data, those that are not rebuilt with the reason."""
    from cuda_rows import reasons

    truth = measured()
    for row, why in reasons().items():
        rows[row] = {**truth[row], "row": row, "group": "not rebuilt", "reason": why}
    ordered = [rows[row] for row in truth if row in rows]
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(ordered)
    RESULTS.with_suffix(".md").write_text("\n".join(page(ordered)) + "\n")


def page(rows: list[Row]) -> list[str]:
    from cuda_rows.misses import DECIDED, explained

    lines = heading("Published CUDA peaks: predicted without a GPU against measured", "python benchmarks/accuracy_cuda.py")
    lines += [*report(lines_of(rows)), "", "## What was decided after a look, or is left open", ""]
    lines += [*(f"- {one}" for one in DECIDED), "", "## Rows", ""]
    shown = []
    for row in rows:
        if row["group"] != "not rebuilt" and row.get("error_percent"):
            off = abs(float(row["error_percent"])) > NOTABLE_PERCENT
            shown.append([row["row"], row["source"][:28], row["configuration"][:90].replace("|", "/"), row["reads"],
                          *(f"{int(row[f'{key}_bytes']) / MIB:.1f}" for key in ("measured", "predicted", "low", "high")),
                          f"{float(row['error_percent']):+.3f}", row["reason"] or (explained(row) if off else "")])
    head = ["row", "source", "configuration", "reads", "measured MiB", "predicted", "low", "high", "error %", "reason"]
    lines += table(head, shown)
    lines += ["", "## Not rebuilt", ""]
    lines += table(["row", "source", "reason"], [[row["row"], row["source"][:40], row["reason"]] for row in rows
                                                 if not row.get("error_percent")])
    return lines


def lines_of(rows: Iterable[Row]) -> list[Line]:
    capped = {row["id"]: row for row in csv.DictReader((DATA / "measured_nvml.csv").open())}
    return [Line.of(row, capped.get(row["row"])) for row in rows if row.get("error_percent")]


def check() -> int:
    rows = list(read().values())
    lines = lines_of(rows)
    print("\n".join(report(lines)))
    bad = failures(lines)
    print("\n".join(["", *(f"NOT MET: {one}" for one in bad)]) if bad else "\nall met")
    return 1 if bad else 0


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["--work"]:
        work(words[1:])
        return 0
    if words[:1] == ["--check"]:
        return check()
    known, everything = read(), list(measured())
    again = words[1:] or everything if words[:1] == ["--again"] else []
    missing = [row for row in everything if not known.get(row, {}).get("predicted_bytes")]
    run([row for row in everything if row in again] if again else missing)
    return check()


if __name__ == "__main__":
    sys.exit(main())
