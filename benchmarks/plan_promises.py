"""What every plan promises, on drawn models: 200 of them, as `tests/plan/test_promises.py` draws and checks a few.

    python benchmarks/plan_promises.py            what is missing (resumable); results/plan_promises.csv
    python benchmarks/plan_promises.py --check    read the results; exit 1 where a promise was broken or rows are missing

Checked: what is returned fits its own simulation; a larger budget is never slower; the same input gives the same plan; no
strategy is in it whose removal would fit and be faster. `only_mixed`: no strategy alone (nor plain) fits that budget.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "plan"))
import test_promises as promises

from memfit.core.device import Device
from memfit.plan import make_plan
from memfit.plan.explore import Explorer
from results_file import append_rows, read_rows

RESULTS = Path(__file__).parent / "results" / "plan_promises.csv"
FIELDS = ["number", "kinds", "width", "samples", "dropout", "wide", "adam", "budget_percent", "costs", "fits", "strategies",
          "only_mixed", "broken", "took_s"]
COUNT = 200
Drawn = tuple[Any, ...]


def draw(number: int) -> tuple[Drawn, tuple[int, int], Device]:
    """The example of that number; the same on every machine."""
    found: list[tuple[Drawn, tuple[int, int], Device]] = []

    @seed(number)
    @settings(max_examples=2, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(promises.JOBS, promises.BUDGETS, promises.DEVICES)
    def one(drawn: Drawn, budgets: tuple[int, int], device: Device) -> None:
        found.append((drawn, budgets, device))

    one()
    return found[-1]  # the first one that hypothesis draws is the simplest there is


def row(number: int) -> dict[str, Any]:
    began = time.perf_counter()
    drawn, budgets, device = draw(number)
    broken = ""
    try:
        promises.check(drawn, budgets, device)
    except AssertionError as error:
        broken = str(error).splitlines()[0] or "broken"
    whole = Explorer(promises.job(*drawn), device).plain.simulation.peak.allocated_bytes
    budget = int(whole * budgets[0] / 100)
    plan = make_plan(promises.job(*drawn), budget=budget, device=device)
    names = [one.name for one in plan.strategies]
    return {
        **dict(zip(FIELDS[1:7], drawn, strict=True)),
        "number": number, "kinds": " ".join(drawn[0]), "budget_percent": budgets[0],
        "costs": "measured" if device is promises.MEASURED else "rates", "fits": plan.fits, "strategies": " + ".join(names),
        "only_mixed": plan.fits and len(names) > 1 and not _one_is_enough(drawn, budget, device), "broken": broken,
        "took_s": f"{time.perf_counter() - began:.1f}"}


def _one_is_enough(drawn: Drawn, budget: int, device: Device) -> bool:
    names = promises.STRATEGIES
    return any(make_plan(promises.job(*drawn), budget=budget, device=device,
                         barred={other: "left out" for other in names if other != name}).fits for name in names)


def read() -> list[dict[str, str]]:
    return read_rows(RESULTS)


def main() -> int:
    if "--check" not in sys.argv:
        done = {int(one["number"]) for one in read()}
        for number in range(COUNT):
            if number not in done:
                add(row(number))
    rows = read()
    broken = [one for one in rows if one["broken"]]
    print(f"{len(rows)} of {COUNT} drawn models: {sum(one['fits'] == 'True' for one in rows)} budgets fit, "
          f"{sum(one['only_mixed'] == 'True' for one in rows)} of them only by a mix; {len(broken)} promises broken")
    for one in broken:
        print(one)
    return 1 if broken or len(rows) < COUNT else 0


def add(found: dict[str, Any]) -> None:
    append_rows(RESULTS, FIELDS, [found])
    print(found["number"], found["strategies"] or "plain", found["broken"], flush=True)


if __name__ == "__main__":
    sys.exit(main())
