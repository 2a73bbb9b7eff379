"""Does a card's prediction depend on the build of PyTorch that makes it? Every recipe under several builds.

    python benchmarks/versions_cuda.py                 all recipes; results/versions_cuda.{csv,md}; exit 1 where they differ
    python benchmarks/versions_cuda.py RECIPE ...      these only, printed

The builds: this Python's, the CPU wheel 2.13.0 (with no cuDNN in reach, as its users have none), and 2.11.0. Each is asked
twice: as it is, and for the kernels of this Python's version, with this Python's cuDNN in reach. A difference that is there
the first time and gone the second is one between the builds; the table says which. Environments are made once, under
~/.cache/memfit-bench or MEMFIT_BENCH_CACHE, beside all that this Python has.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from environments import beside_this_python
from machine import heading, table

RESULTS = Path(__file__).parent / "results" / "versions_cuda.csv"
BUILDS = ("", "2.13.0+cpu", "2.11.0")  # "": the one of this Python
CARD, MOST_PERCENT, MIB = "rtx3060", 0.5, 1 << 20
FIGURES = ("allocated", "reserved", "process")
NO_LIBRARY = "the build brings no cuDNN: the shipped table answers for convolutions"
KNOWN = {
    "_scaled_dot_product_efficient_attention": "from 2.14 on, memory-efficient attention takes heads that share keys; before, "
                                               "scores were whole (pytorch#191085)",
}


class Line(NamedTuple):
    """A recipe under a build: MiB as it is, and by this Python's kernels and cuDNN; `operators`: its own attention and
    convolutions."""

    recipe: str
    build: str
    own: tuple[float, ...]
    same: tuple[float, ...]
    operators: tuple[str, ...]


def work(names: Sequence[str], version: str) -> None:
    """In a build's own process: a line of JSON for each recipe. `version` is that of the kernels to compare by."""
    _declare_torchvision()
    import torch

    from memfit.hardware import find_device
    from memfit.recipes import RECIPES, recipe
    from memfit.simulate import simulate
    from memfit.trace import trace_job
    from memfit.trace.cuda import target_of

    device = find_device(CARD)
    for name in names or RECIPES:
        figures: list[list[float]] = []
        operators: set[str] = set()  # of its own kernels
        for kernels in ("", version):
            traces = trace_job(recipe(name), target_of(device, kernels))
            peak = simulate(traces.steady, device, first=traces.first, torch_version=version).peak
            figures.append([getattr(peak, f"{figure}_bytes") / MIB for figure in FIGURES])
            if not kernels:
                operators = {op.name for op in traces.steady.ops if "attention" in op.name or "convolution" in op.name}
        print("ROW " + json.dumps([name, torch.__version__, *figures, sorted(operators)]), flush=True)


def _declare_torchvision() -> None:
    """torchvision's networks are plain Python; its compiled operators, of which none is used, fit one build of torch only.
    Declared, they let the import pass under another."""
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        global _library
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_library: Any = None


def lines(names: Sequence[str]) -> Iterable[Line]:
    """All recipes under all builds."""
    import torch

    for build in BUILDS:
        found = list(_under(build, names, torch.__version__, {"MEMFIT_CUDNN": ""} if build.endswith("+cpu") else {}))
        if build.endswith("+cpu"):
            same = {line.recipe: line.same for line in _under(build, names, torch.__version__, {})}
            found = [line._replace(same=same[line.recipe]) for line in found]
        yield from found


def _under(build: str, names: Sequence[str], kernels: str, variables: dict[str, str]) -> Iterable[Line]:
    words = [beside_this_python("torch", build, no_deps=True), __file__, "--work", kernels, *names]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}) as process:
        assert process.stdout is not None
        for text in process.stdout:
            if text.startswith("ROW "):
                recipe, version, own, same, operators = json.loads(text[4:])
                yield Line(recipe, version, tuple(own), tuple(same), tuple(operators))
    if process.returncode:
        raise SystemExit(f"torch {build}: the worker ended with {process.returncode}")


def off_percent(these: Sequence[float], those: Sequence[float]) -> float:
    """The largest difference of a figure, either way."""
    return max(abs(100 * (a / b - 1)) for a, b in zip(these, those, strict=True))


def judged(found: Sequence[Line]) -> list[dict[str, str]]:
    """A row for each line beside that of this Python's build."""
    first = {line.recipe: line for line in reversed(found)}
    rows = []
    for line in found:
        mine = first[line.recipe]
        own, same = off_percent(line.own, mine.own), off_percent(line.same, mine.own)
        rows.append({"recipe": line.recipe, "torch": line.build,
                     **{f"{name}_mib": f"{value:.2f}" for name, value in zip(FIGURES, line.own, strict=True)},
                     "off_percent": f"{own:.3f}", "off_same_kernels_percent": f"{same:.3f}",
                     "why": _why(line, mine) if own > MOST_PERCENT else ""})
    return rows


def _why(line: Line, mine: Line) -> str:
    gone = off_percent(line.same, mine.own) <= MOST_PERCENT
    for name in sorted(set(mine.operators) - set(line.operators)):
        if gone and name in KNOWN:
            return KNOWN[name]
    if gone and line.build.endswith("+cpu") and "convolution" in line.operators:
        return NO_LIBRARY
    return "gone with the same kernels" if gone else "NOT EXPLAINED"


def unexplained(rows: Sequence[dict[str, str]]) -> list[str]:
    return [f"{row['recipe']} under {row['torch']}: {row['off_percent']} %" for row in rows
            if float(row["off_percent"]) > MOST_PERCENT and row["why"] not in (*KNOWN.values(), NO_LIBRARY)]


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["--work"]:
        work(words[2:], words[1])
        return 0
    rows = judged(list(lines(words)))
    shown = table(list(rows[0]), [list(row.values()) for row in rows])
    print("\n".join(shown))
    if not words:
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        page = heading("A card's prediction under several builds of PyTorch", "python benchmarks/versions_cuda.py")
        note = f"Card: {CARD}. `off_percent`: the largest difference of the three figures from those of the first build."
        RESULTS.with_suffix(".md").write_text("\n".join([*page, note, "", *shown]) + "\n")
    bad = unexplained(rows)
    print("\n".join(["", *(f"NOT MET: {one}" for one in bad)]) if bad else f"\nall within {MOST_PERCENT} %, or explained")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
