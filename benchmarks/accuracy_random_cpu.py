"""Predicted against measured peaks on the CPU for fifty models drawn by seed, first and steady step.

    python benchmarks/accuracy_random_cpu.py            run what is missing (resumable); results/accuracy_random_cpu.csv
    python benchmarks/accuracy_random_cpu.py --again    predict all again, keeping the measurements
    python benchmarks/accuracy_random_cpu.py --check    print the table

Prediction and measurement have a fresh process each and a time limit; measure_cpu.py shares nothing with the prediction.
A name is left out, and the next one drawn, where the model does not run by itself on this input (measuring fails too), or
its weights, gradients and momentum alone need more than 4 GiB (the first names drawn: 8 GiB in all), or it takes too long;
those are counted in the table. What memfit cannot trace or predicts wrong stays in.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

from machine import heading, table
from results_file import read_rows

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "accuracy_random_cpu.csv"
FIELDS = ["model", "outcome", "first_predicted", "first_measured", "steady_predicted", "steady_measured",
          "first_percent", "steady_percent", "note"]
COUNT, SEED, LIMIT_S, LARGEST_BYTES, MIB = 50, 0, 300, 4 << 30, 1 << 20
TOO_LONG = f"took more than {LIMIT_S} s"
OUTCOMES = ("right", "off", "untraceable", "does not run", "too large", "too slow")
SETTLED = ("right", "off", "untraceable")
Row = dict[str, str]


def predict(name: str) -> dict[str, int]:
    """First and steady peak of the job of that name (in this process)."""
    from accuracy_cpu import CPU
    from memfit.simulate import simulate
    from memfit.trace import trace_job
    from random_models import job

    traces = trace_job(job(name))
    first, steady = (simulate(trace, CPU).peak.allocated_bytes for trace in (traces.first, traces.steady))
    return {"first_bytes": first, "steady_bytes": steady}


def in_a_process(*words: str) -> tuple[dict[str, int] | None, str]:
    """The JSON on its last line, or None and what went wrong."""
    try:
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return None, TOO_LONG
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return None, lines[-1][:200] if lines else f"exit {done.returncode}"
    return json.loads(done.stdout.strip().splitlines()[-1]), ""


def row(name: str, known: Row | None = None) -> Row:
    """The row of one model; measured values are taken from `known` where given."""
    least, _ = in_a_process(str(HERE / "random_models.py"), name)
    if least is not None and least["least_bytes"] > LARGEST_BYTES:
        return {"model": name, "outcome": "too large", "note": f"at least {least['least_bytes'] / MIB:.0f} MiB"}
    guess, why = in_a_process(str(HERE / "accuracy_random_cpu.py"), "--predict", name)
    if known is not None and known.get("first_measured"):
        truth, error = {f"{s}_bytes": int(known[f"{s}_measured"]) for s in ("first", "steady")}, ""
    else:
        target = f"{HERE / 'random_models.py'}:job"
        truth, error = in_a_process(str(HERE / "measure_cpu.py"), target, json.dumps({"name": name}), "[]")
    if truth is None:
        return {"model": name, "outcome": "too slow" if error == TOO_LONG else "does not run", "note": error}
    found = {"model": name, "first_measured": str(truth["first_bytes"]), "steady_measured": str(truth["steady_bytes"])}
    if guess is None:
        return {**found, "outcome": "untraceable", "note": why}
    off = False
    for step in ("first", "steady"):
        guessed, true = guess[f"{step}_bytes"], truth[f"{step}_bytes"]
        found |= {f"{step}_predicted": str(guessed), f"{step}_percent": f"{100 * (guessed / true - 1):.3f}"}
        off = off or abs(guessed - true) > max(0.01 * true, MIB)
    return {**found, "outcome": "off" if off else "right"}


def read() -> list[Row]:
    return read_rows(RESULTS)


def write(rows: list[Row]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    counts = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in OUTCOMES}
    shown = [[r["model"], r["outcome"], _mib(r.get("steady_measured")), r.get("first_percent", ""),
              r.get("steady_percent", ""), r.get("note", "")[:80]] for r in rows]
    lines = heading("Models drawn by seed: predicted against measured", "python benchmarks/accuracy_random_cpu.py")
    lines += [", ".join(f"{count} {outcome}" for outcome, count in counts.items()) + "."
              " Right: both steps within 1 % or 1 MiB.", ""]
    lines += table(["model", "outcome", "steady MiB", "first %", "steady %", "note"], shown)
    RESULTS.with_suffix(".md").write_text("\n".join(lines) + "\n")


def _mib(count: str | None) -> str:
    return f"{int(count) / MIB:.1f}" if count else ""


def run(rows: list[Row]) -> list[Row]:
    from random_models import drawn

    done = {row["model"] for row in rows}
    for name in drawn(SEED):
        if sum(row["outcome"] in SETTLED for row in rows) >= COUNT:
            break
        if name not in done:
            rows.append(row(name))
            write(rows)
            print(rows[-1], flush=True)
    return rows


def main() -> int:
    if "--predict" in sys.argv:
        print(json.dumps(predict(sys.argv[-1])))
        return 0
    rows = read()
    if "--again" in sys.argv:
        rows = [row(old["model"], old) if old["outcome"] in SETTLED else old for old in rows]
        write(rows)
    elif "--check" not in sys.argv:
        rows = run(rows)
    for line in rows:
        print(*(line.get(key, "")[:100] for key in ("model", "outcome", "first_percent", "steady_percent", "note")))
    return 1 if any(line["outcome"] in ("off", "untraceable") for line in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
