"""`memfit demo`: the whole story on this machine, in under two minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from memfit.cli import options
from memfit.cli.output import conclude, document_only, with_error
from memfit.cli.progress import say

if TYPE_CHECKING:
    from memfit.core.results import Plan, Run, Verdict

TARGET, BUDGET, STEPS, COMPARED = "vit-mini", "25%", 64, 10


@dataclass(frozen=True)
class Story:
    """What the demonstration has seen. `losses` are those of the run, step by step."""

    made: Plan
    verdict: Verdict
    run: Run
    losses: list[float]


def demo(
    out: Annotated[str, typer.Option(metavar="FILE", help="Where to write the report.")] = "memfit-demo.html",
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Steps to train.")] = STEPS,
    as_json: options.AsJson = False,
) -> int:
    """The whole story in under two minutes, on this machine.

    Trains a ViT on real digits in a quarter of the memory that it needs, shows plain PyTorch dying there, and proves
    that the result is the same.
    """
    with document_only(as_json):
        from memfit.prove import error_of

        story = _story(steps)
        report = _page(story, out)
        verdict = replace(story.verdict, demo={
            "accuracy": story.run.evaluation.get("accuracy"), "loss_first": story.run.loss_first,
            "loss_last": story.run.loss_last, "report": report})
        text = _text(story, report)
    return conclude(verdict.to_dict(), text, as_json, error_of(verdict))


def _story(steps: int) -> Story:
    from memfit.cli import planning
    from memfit.prove import error_of, prove_target
    from memfit.report import gib, ratio

    say(f"1/4  predicting what {TARGET} needs, and planning for a quarter of it")
    asked = planning.request(TARGET, None, budget=BUDGET, device="cpu")
    made = planning.require_fit(planning.planned(asked, announced=False))
    names = " + ".join(one.name for one in made.strategies)
    plain_bytes, budget_bytes = made.baseline.peak.allocated_bytes, made.budget.device_bytes
    say(f"     plain needs {gib(plain_bytes)}; the budget is {gib(budget_bytes)}: {names}")
    say(f"2/4  plain PyTorch and the plan, each in a fresh process under the same limit; {COMPARED} steps compared")
    verdict = prove_target(TARGET, {}, made, steps=COMPARED, enforce=True)
    ends = {False: "was refused memory and died", True: "survived", None: "ran without a limit"}
    end = ends[verdict.plain.survives_budget]
    say(f"     plain {end}; the plan finished, at {ratio(verdict.slowdown)} plain's step time")
    error = error_of(verdict)
    if error is not None and verdict.planned.survives_budget is False:
        error.document = with_error(verdict.to_dict(), error)
        raise error
    say(f"3/4  training {steps} steps inside the budget")
    run, losses = _trained(made, steps)
    say("4/4  writing the report")
    return Story(made, verdict, run, losses)


def _trained(made: Plan, steps: int) -> tuple[Run, list[float]]:
    from memfit.cli.running import run_training, train_spec
    from memfit.cli.train_command import as_run, finished

    spec = train_spec(TARGET, {}, made, steps=steps, enforce=True)
    ended = run_training(spec, TARGET)
    return as_run(finished(ended, spec)), ended.losses


def _page(story: Story, out: str) -> str:
    from memfit.report import save_html

    losses: Mapping[str, list[float]] | None = {"planned": story.losses} if story.losses else None
    return str(save_html(out, [story.verdict, story.made, story.run], "memfit demo", losses=losses))


def _text(story: Story, report: str) -> str:
    from memfit.report import percent, to_text

    run, accuracy = story.run, story.run.evaluation.get("accuracy")
    lines = [f"Trained {run.steps} steps inside the budget: loss {run.loss_first:.3f} to {run.loss_last:.3f}"]
    if accuracy is not None:
        lines.append(f"Accuracy on held-out digits: {percent(accuracy)} (chance: 10 %)")
    return "\n".join([to_text(story.verdict), *lines, f"Report: {report}"])
