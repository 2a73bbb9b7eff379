"""Starting the worker that trains, and hearing of its progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memfit.cli.progress import say, step_bar
from memfit.core.errors import MemfitError
from memfit.core.results import Plan

_OF_THE_PLAN = ("target", "device", "budget", "fidelity", "strategies", "predicted", "slowdown", "notes")


@dataclass(frozen=True)
class Ended:
    """How a training worker ended: its `memfit.run/1`, or an error; and the events of its steps."""

    run: dict[str, Any] | None
    steps: list[dict[str, Any]]
    error: MemfitError | None

    @property
    def losses(self) -> list[float]:
        return [event["loss"] for event in self.steps if isinstance(event.get("loss"), float)]


def train_spec(
    target: str,
    settings: Mapping[str, Any],
    made: Plan,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    enforce: bool = False,
    out: str | Path | None = None,
    resume: str | Path | None = None,
) -> dict[str, Any]:
    """What `memfit.train.worker` reads."""
    shown = made.to_dict()
    return {
        "target": target, "settings": dict(settings), "seed": seed_of(settings),
        "choices": [{"name": one.name, "settings": dict(one.settings)} for one in made.strategies],
        "budget_bytes": made.budget.device_bytes, "enforce": enforce,
        "predicted_peak_bytes": made.predicted.peak.allocated_bytes,
        "plan": {key: shown[key] for key in _OF_THE_PLAN},
        "steps": steps, "epochs": epochs,
        "out": str(Path(out).resolve()) if out else None, "resume": str(Path(resume).resolve()) if resume else None,
    }


def seed_of(settings: Mapping[str, Any]) -> int:
    """The TARGET's `seed` setting seeds the process, too; 0 where it has none, or one of its own kind."""
    seed = settings.get("seed", 0)
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else 0


def run_training(spec: Mapping[str, Any], label: str) -> Ended:
    """Run the worker with a progress bar on a terminal; one that meets its limit goes on with exact allocation."""
    from memfit.launch.limited import run_limited

    steps: list[dict[str, Any]] = []
    with step_bar(label, spec.get("steps")) as advance:

        def on_event(event: dict[str, Any]) -> None:
            if event["kind"] == "step":
                _append(steps, event)
                advance(event)
            elif event["kind"] == "restarted":
                say(f"started again: {event['why']}")

        result = run_limited("memfit.train.worker", spec, on_event=on_event, again=lambda: _resumed(spec))
    return Ended(result.result.get("run") if result.result else None, steps, result.error)


def _append(steps: list[dict[str, Any]], event: dict[str, Any]) -> None:
    """A run that was started again does some steps a second time: those count."""
    while steps and steps[-1]["step"] >= event["step"]:
        steps.pop()
    steps.append(event)


def _resumed(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec from the last checkpoint on, if the run has written one."""
    from memfit.train.checkpoints import find_checkpoint

    if not spec.get("out"):
        return spec
    try:
        find_checkpoint(Path(spec["out"]))
    except MemfitError:
        return spec
    return {**spec, "resume": spec["out"]}


def unfinished(spec: Mapping[str, Any], ended: Ended) -> dict[str, Any]:
    """The `memfit.run/1` of a run that died: what is known of it."""
    losses = ended.losses
    return {
        "schema": "memfit.run/1", "steps": ended.steps[-1]["step"] if ended.steps else 0,
        "loss_first": losses[0] if losses else None, "loss_last": losses[-1] if losses else None, "peak_bytes": None,
        "rss_peak_bytes": max((event.get("growth_bytes") or 0 for event in ended.steps), default=None),
        "predicted_peak_bytes": spec["predicted_peak_bytes"], "budget_bytes": spec["budget_bytes"],
        "within_budget": False, "enforced": spec["enforce"], "oom_recovered": 0, "step_s_median": None,
        "samples_per_s": None, "plan": spec["plan"]}
