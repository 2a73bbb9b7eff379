"""Starting the worker that trains, and hearing of its progress."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memfit.core.errors import MemfitError
from memfit.core.results import Plan


def require_fit(made: Plan) -> Plan:
    """The plan, or DoesNotFit with its floor."""
    if not made.fits:
        from memfit.plan.advice import does_not_fit

        raise does_not_fit(made)
    return made


def train_spec(
    target: str,
    settings: Mapping[str, Any],
    made: Plan,
    *,
    steps: int | None = None,
    epochs: int | None = None,
    enforce: bool = False,
    out: str | None = None,
    resume: str | None = None,
) -> dict[str, Any]:
    """What `memfit.train.worker` reads."""
    shown = made.to_dict()
    return {
        "target": target, "settings": dict(settings), "seed": int(settings.get("seed", 0)),
        "choices": [{"name": one.name, "settings": dict(one.settings)} for one in made.strategies],
        "budget_bytes": made.budget.device_bytes, "enforce": enforce,
        "predicted_peak_bytes": made.predicted.peak.allocated_bytes,
        "plan": {key: shown[key] for key in ("target", "device", "budget", "fidelity", "strategies", "predicted", "slowdown")},
        "steps": steps, "epochs": epochs,
        "out": str(Path(out).resolve()) if out else None, "resume": str(Path(resume).resolve()) if resume else None,
    }


def run_training(spec: Mapping[str, Any], label: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]], MemfitError | None]:
    """Run the worker with a progress bar on a terminal; gives the run's document, the step events and the error."""
    from memfit.launch import run_worker

    steps: list[dict[str, Any]] = []
    with Progress(label, spec.get("steps")) as advance:

        def on_event(event: dict[str, Any]) -> None:
            if event["kind"] == "step":
                steps.append(event)
                advance(event)

        result = run_worker("memfit.train.worker", spec, on_event=on_event, limited=bool(spec.get("enforce")))
    document = result.result.get("run") if result.result else None
    return document, steps, result.error


class Progress:
    """A progress bar on a terminal; quiet in a pipe."""

    def __init__(self, label: str, total: int | None) -> None:
        self._label, self._total = label, total
        self._bar: Any = None

    def __enter__(self) -> Any:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                                 console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total)
        return self._advance

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _advance(self, event: Mapping[str, Any]) -> None:
        if self._bar is not None:
            loss = event.get("loss")
            shown = f"{self._label} loss {loss:.4f}" if isinstance(loss, float) else self._label
            self._bar.update(self._task, advance=1, description=shown)

