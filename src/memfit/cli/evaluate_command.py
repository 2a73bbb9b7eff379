"""`memfit evaluate TARGET`: the job's own evaluation, without a graph, in a fresh process inside a budget; predicted first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from memfit.cli import options
from memfit.cli.output import conclude, document_only, with_error
from memfit.core.errors import MemfitError, OverBudget, RanOutOfMemory, UsageError

if TYPE_CHECKING:
    from memfit.cli.planning import Request
    from memfit.plan.evaluation import Evaluating

Fold = Annotated[bool, typer.Option("--fold", help="Also with BatchNorms folded into convolutions: before and after.")]
Samples = Annotated[options.Count, typer.Option("--samples", metavar="N", help="How many outputs to count or collect.")]
Collect = Annotated[options.Text, typer.Option("--collect", metavar="host|F.npy", help="Keep outputs: on the host, or a file.")]


def evaluate(
    target: options.Target,
    budget: options.Budget = None,
    plan: options.PlanFile = None,
    device: options.Device = None,
    host_budget: options.HostBudget = None,
    fidelity: options.Fidelity = None,
    settings: options.Settings = None,
    fold: Fold = False,
    samples: Samples = None,
    collect: Collect = None,
    as_json: options.AsJson = False,
) -> int:
    """Evaluate without a graph: predicted, then measured.

    The budget (or that of a plan file) is enforced where the system can; without one there is no limit. Outputs are reduced
    batch by batch; --collect keeps them, which is refused where they are larger than the memory for them.
    """
    with document_only(as_json):
        from memfit.cli import planning
        from memfit.cli.running import seed_of
        from memfit.launch import run_limited
        from memfit.plan.evaluation import predict_evaluation
        from memfit.recipes import load
        from memfit.report import to_text

        _check(samples, collect)
        asked = planning.request(target, settings, budget=budget, device=device, host_budget=host_budget,
                                 fidelity=fidelity, plan_file=plan, runs=True)
        budget_bytes = _budget_bytes(asked)
        predicted = predict_evaluation(load(target, asked.settings), device=device, folded=fold)
        count = samples or predicted.samples
        _check_room(predicted, count, collect, budget_bytes, asked.host_budget)
        spec = {"target": target, "settings": dict(asked.settings), "seed": seed_of(asked.settings),
                "budget_bytes": budget_bytes, "enforce": budget_bytes is not None, "collect": collect, "samples": count,
                "graph": _room_for_graph(predicted), "pairs": predicted.pairs}
        result = run_limited("memfit.train.evaluation_worker", spec)
        document = _with_prediction(_document(spec, result), predicted, count, collect)
        text = to_text(document)
    return conclude(document, text, as_json, _over_budget(document))


def _check(samples: int | None, collect: str | None) -> None:
    if samples is not None and samples < 1:
        raise UsageError(f"--samples is {samples}", "give a whole number from 1 up")
    if collect is not None and collect != "host" and not collect.endswith(".npy"):
        raise UsageError(f"--collect is {collect!r}", "give host, or a file that ends in .npy")


def _check_room(
    predicted: Evaluating, samples: int, collect: str | None, budget_bytes: int | None, host_budget: str | None
) -> None:
    """Refuse outputs that would not fit where they are to be kept. On a CPU the host's memory is the device's."""
    from pathlib import Path

    from memfit.core.units import parse_size
    from memfit.hardware.disks import free_disk_bytes
    from memfit.hardware.host import free_host_bytes
    from memfit.plan.evaluation import check_collected

    if collect is None:
        return
    if collect != "host":
        check_collected(predicted, samples, free_disk_bytes(Path(collect).absolute().parent), "the room on that disk")
        return
    if host_budget is not None:
        check_collected(predicted, samples, parse_size(host_budget), "the host budget")
    if budget_bytes is not None:
        check_collected(predicted, samples, max(0, budget_bytes - predicted.peak_bytes), "what a batch leaves of the budget")
    check_collected(predicted, samples, free_host_bytes(), "the memory that is free")


def _room_for_graph(predicted: Evaluating) -> bool:
    """Whether a batch with a graph may be run beside it, for comparison."""
    from memfit.hardware.host import free_host_bytes

    return 2 * predicted.graph_peak_bytes < free_host_bytes()


def _with_prediction(document: dict[str, Any], predicted: Evaluating, samples: int, collect: str | None) -> dict[str, Any]:
    folding = document.get("folding")
    return {
        **document,
        "predicted": {"samples": predicted.samples, "resident_bytes": predicted.resident_bytes,
                      "peak_bytes": predicted.peak_bytes, "graph_peak_bytes": predicted.graph_peak_bytes,
                      "operators": predicted.operators},
        "outputs": {"samples": samples, "bytes_per_sample": predicted.collected_bytes(1),
                    "collected_bytes": predicted.collected_bytes(samples), "kept": collect or "reduced"},
        "folding": folding and {"pairs": len(predicted.pairs), "operators": predicted.folded_operators,
                                "predicted_peak_bytes": predicted.folded_peak_bytes, **folding},
    }


def _budget_bytes(asked: Request) -> int | None:
    """The budget in bytes; a share is one of what the plain training step needs."""
    from memfit.core.units import is_share, parse_size

    if asked.plan_file is not None:
        from memfit.cli.planning import planned

        return planned(asked).budget.device_bytes
    if asked.budget is None:
        return None
    if not is_share(asked.budget):
        return parse_size(asked.budget)
    from memfit.plan import estimate_job
    from memfit.recipes import load

    whole = estimate_job(load(asked.target, asked.settings), device=asked.device)
    return parse_size(asked.budget, whole_bytes=whole.peak.allocated_bytes)


def _document(spec: dict[str, Any], result: Any) -> dict[str, Any]:
    """The `memfit.evaluation/1`. Raises the worker's error, with a document where memory was refused."""
    error: MemfitError | None = result.error
    if error is None:
        return result.result["evaluation"]
    if isinstance(error, RanOutOfMemory):
        known = {"schema": "memfit.evaluation/1", "target": spec["target"], "metrics": {}, "rss_peak_bytes": None,
                 "budget_bytes": spec["budget_bytes"], "within_budget": False, "enforced": spec["enforce"],
                 "took_s": result.took_s, "notes": []}
        error.document = with_error(known, error)
    raise error


def _over_budget(document: dict[str, Any]) -> OverBudget | None:
    if document.get("within_budget") is not False:
        return None
    from memfit.report import gib

    return OverBudget(f"the evaluation was alive but above its budget of {gib(document['budget_bytes'])}: "
                      f"{gib(document['rss_peak_bytes'])} resident",
                      "give a larger --budget, or evaluate in smaller batches")
