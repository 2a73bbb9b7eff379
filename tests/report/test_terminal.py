import dataclasses
import io
import math
import subprocess
import sys

import pytest
from rich.console import Console

from memfit.core.device import Device
from memfit.core.results import FrontierPoint, LargeTensor
from memfit.report import estimates_view, render, to_text

MIB = 2**20


@pytest.mark.parametrize("kind", ["plan", "bare", "estimate", "verdict", "run"])
@pytest.mark.parametrize("width", [100, 80, 200])
def test_lines_are_short_and_without_colour(kind, width, request):
    shown = to_text(request.getfixturevalue(kind), width)
    assert max(map(len, shown.splitlines())) <= min(width, 100)
    assert "\x1b" not in shown
    assert all(line == line.rstrip() for line in shown.splitlines())


def test_a_long_name_is_folded_not_lost(estimate):
    name = "model." + ".".join(f"very_long_block_name_{i}" for i in range(9))
    long = dataclasses.replace(estimate, largest=(LargeTensor(MIB, (1,), "float32", name, "aten.mm", "activations"),))
    shown = to_text(long)
    assert max(map(len, shown.splitlines())) <= 100
    assert name in "".join(shown.split())


def test_a_plan_says_whether_it_fits_and_why(plan):
    shown = to_text(plan)
    assert "FITS: 130.0 MiB of 140.0 MiB, 3.85x less than plain, 1.31x its step time" in shown
    assert "encoder.layer.0-11 (12 modules)" in shown and "why checkpoint" in shown
    assert "fidelity <reduced> is not allowed" in shown
    (chosen,) = [line for line in shown.splitlines() if line.strip().startswith("->") and "130.0 MiB" in line]
    assert "1.31x" in chosen
    assert "<= 300.0 MiB" in shown and "largest batch  96" in shown and "120.0 MiB, the smallest" in shown


def test_a_plan_that_does_not_fit_names_the_floor(bare):
    shown = to_text(bare)
    assert "DOES NOT FIT: the smallest allowed plan needs 150.0 MiB, the budget is 140.0 MiB" in shown
    assert "From plain" not in shown and "largest batch" not in shown


def test_a_long_frontier_is_thinned_but_keeps_its_ends_and_the_choice(plan):
    points = [FrontierPoint((500 - i) * MIB, 1 + i / 100, ({"name": f"s{i}"},), True) for i in range(100)]
    chosen = FrontierPoint(200 * MIB, 1.5, plan.frontier[2].strategies, True)
    points[37] = chosen
    shown = to_text(dataclasses.replace(plan, frontier=tuple(points)))
    assert all(text in shown for text in ("500.0 MiB", "401.0 MiB", "88 more"))
    assert any(line.split()[:3] == ["->", "200.0", "MiB"] for line in shown.splitlines())


def test_a_verdict_puts_both_sides_beside_each_other(verdict):
    shown = to_text(verdict)
    assert "SAME RESULT, WITHIN BUDGET: in 140.0 MiB plain dies, planned survives, at 1.32x the step time" in shown
    assert any("500.0 MiB" in line and "129.0 MiB" in line for line in shown.splitlines())
    unlike = to_text(dataclasses.replace(verdict, same_result=False))
    assert "NOT THE SAME RESULT" in unlike


def test_where_nothing_was_enforced_nobody_dies(verdict):
    sides = {side: dataclasses.replace(getattr(verdict, side), survives_budget=None) for side in ("plain", "planned")}
    shown = to_text(dataclasses.replace(verdict, enforced=False, **sides))
    assert "dies" not in shown and "not tried" in shown and "limit not enforced" in shown


def test_a_run_with_and_without_a_budget(run):
    shown = to_text(run)
    assert "WITHIN BUDGET" in shown and "recovered 2 times" in shown and "2.3 -> 0.31" in shown
    assert "OVER BUDGET" in to_text(dataclasses.replace(run, within_budget=False))
    free = to_text(dataclasses.replace(run, budget_bytes=None, within_budget=None, loss_last=math.nan, plan={}))
    assert "BUDGET" not in free and "2.3 -> NaN" in free
    ended = to_text(dataclasses.replace(run, step_s_median=0.0, loss_first=math.nan, loss_last=math.nan))
    assert f"NOTHING LEFT TO DO: the run is at step {run.steps}" in ended and "NaN" not in ended and "WITHIN" not in ended


def test_an_estimate_of_a_card_shows_tensors_reserved_and_process(estimate):
    shown = to_text(estimate)
    assert "PEAK: 10.00 GiB" in shown
    assert all(word in shown for word in ("tensors ", "reserved ", "process ", "backward, encoder.layer.3.<lambda>&co"))


def test_a_card_that_is_too_small_is_named_with_its_room(estimate):
    small = dataclasses.replace(estimate, fits=False, capacity_bytes=8 * 2**30)
    assert "8.00 GiB on rtx3060: does not fit, 2.00 GiB short" in to_text(small)
    barely = dataclasses.replace(small, capacity_bytes=10 * 2**30)
    assert "10.00 GiB on rtx3060: may not fit, up to 1.0 MiB short" in to_text(barely)
    assert "does not fit" not in to_text(dataclasses.replace(small, fits=True))


def test_lists_of_devices_and_estimates(estimate):
    devices = [Device("cpu", "cpu", 2**34, {"float32": 1e11}, 2e10), Device("rtx3060", "cuda", 2**33, {}, 3.6e11)]
    shown = to_text(devices)
    assert "16.00 GiB" in shown and "100 GFLOP/s" in shown and "360 GB/s" in shown
    console = Console(file=io.StringIO(), width=100)
    console.print(estimates_view([estimate, estimate], ["batch 1", "batch 2"], {"rtx3060": 8 * 2**30}))
    assert "batch 2" in console.file.getvalue() and "NO" in console.file.getvalue()


def test_any_other_document_is_shown_with_its_units():
    document = {
        "schema": "memfit.compress/1",
        "file_bytes": {"before": 2 * MIB},
        "latency_s": {"after": 0.01},
        "ok": True,
    }
    shown = to_text(document)
    assert all(word in shown for word in ("compress", "2.0 MiB", "10 ms", "yes"))


def test_markup_in_names_is_not_read(plan):
    assert "models.py:[bold]x[/]" in to_text(
        dataclasses.replace(plan, target="models.py:[bold]x[/]", notes=("[red]n[/]",))
    )


@pytest.mark.parametrize("kind", ["plan", "estimate", "verdict", "run"])
def test_a_terminal_that_knows_ascii_only(kind, request):
    sink = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=sink, width=100).print(render(request.getfixturevalue(kind)))
    sink.flush()


def test_no_torch():
    code = "import sys, memfit.report; assert 'torch' not in sys.modules and 'jinja2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
