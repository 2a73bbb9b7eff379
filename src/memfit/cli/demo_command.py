"""`memfit demo`: the whole story on this machine, in under two minutes."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from memfit.cli import options
from memfit.cli.output import document_only, show

TARGET, BUDGET, STEPS, COMPARED = "vit-mini", "25%", 64, 10


def demo(
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to write the report.")] = "memfit-demo.html",
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps to train.")] = STEPS,
    as_json: options.AsJson = False,
) -> int:
    """Train a ViT on real digits in a quarter of the memory that it needs, and prove that the result is the same."""
    with document_only(as_json):
        verdict, run, made, losses = _story(steps)
        report = _page(verdict, run, made, losses, out)
        accuracy = run["evaluation"].get("accuracy")
        verdict = replace(verdict, demo={
            "accuracy": accuracy, "loss_first": run["loss_first"], "loss_last": run["loss_last"], "report": report})
        text = _text(verdict, run, accuracy, report)
    show(verdict.to_dict(), text, as_json)
    from memfit.cli.prove_command import exit_code

    return exit_code(verdict)


def _story(steps: int) -> tuple[Any, dict[str, Any], Any, list[float]]:
    from memfit.cli.planning import planned
    from memfit.cli.running import require_fit, run_training, train_spec
    from memfit.prove import prove_target
    from memfit.report import gib, ratio

    _tell(f"1/4  predicting what {TARGET} needs, and planning for a quarter of it")
    made = require_fit(planned(TARGET, [], budget=BUDGET, device="cpu", host_budget=None, fidelity="resampled"))
    names = ", ".join(one.name for one in made.strategies)
    _tell(f"     plain needs {gib(made.baseline.peak.allocated_bytes)}; the budget is {gib(made.budget.device_bytes)}: {names}")
    _tell(f"2/4  plain PyTorch and the plan, each in a fresh process under the same limit, {COMPARED} steps compared")
    verdict = prove_target(TARGET, {}, made, steps=COMPARED, enforce=True)
    died = "was refused memory and died" if verdict.plain.survives_budget is False else "survived"
    _tell(f"     plain {died}; the plan finished at {ratio(verdict.slowdown)} plain's time")
    _tell(f"3/4  training {steps} steps inside the budget")
    run, events, error = run_training(train_spec(TARGET, {}, made, steps=steps, enforce=True), TARGET)
    if error is not None:
        raise error
    assert run is not None
    _tell("4/4  writing the report")
    return verdict, run, made, [event["loss"] for event in events if isinstance(event.get("loss"), float)]


def _page(verdict: Any, run: dict[str, Any], made: Any, losses: list[float], out: str) -> str:
    from memfit.cli.train_command import as_run
    from memfit.report import save_html

    return str(save_html(out, [verdict, made, as_run(run)], "memfit demo", losses={"planned": losses} if losses else None))


def _text(verdict: Any, run: dict[str, Any], accuracy: float | None, report: str) -> str:
    from memfit.report import percent, to_text

    learnt = f"accuracy on held-out digits: {percent(accuracy)} (chance: 10 %)" if accuracy is not None else ""
    return "\n".join([
        to_text(verdict), "",
        f"trained {run['steps']} steps inside the budget: loss {run['loss_first']:.3f} to {run['loss_last']:.3f}; {learnt}",
        f"report: {report}"])


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
