"""How a command ends, and what each document of the contract must hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TARGETS = Path(__file__).with_name("cli_targets.py")


def target(name: str) -> str:
    return f"{TARGETS}:{name}"


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code, and what stood on stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one document on stdout."""
        assert self.out.count("\n") == 1, f"not one line on stdout:\n{self.out}"
        return json.loads(self.out, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))

    @property
    def line(self) -> str:
        """The one line on stderr."""
        assert self.err.count("\n") == 1 and self.err.startswith("memfit: "), f"not one line on stderr:\n{self.err}"
        return self.err


Run = Callable[..., Ended]

def _words(text: str) -> set[str]:
    return set(text.split())


PEAK = _words("""allocated_bytes allocated_low_bytes allocated_high_bytes reserved_bytes reserved_low_bytes
                 reserved_high_bytes process_bytes low_bytes high_bytes""")
CATEGORIES = _words("parameters gradients optimizer_state activations inputs buffers temporaries workspace")
SIDE = _words("peak_bytes step_s_median survives_budget")

FIELDS = {
    "memfit.error/1": ("code message advice", ""),
    "memfit.estimate/1": (
        "target device peak first_step_peak_bytes at_peak largest step_s took_s",
        "measured notes fits capacity_bytes"),
    "memfit.plan/1": (
        ("target device budget fits fidelity strategies predicted baseline slowdown floor_bytes rejected frontier "
        "largest_batch took_s"), "model_hash memfit_version notes"),
    "memfit.run/1": (
        ("steps loss_first loss_last peak_bytes rss_peak_bytes predicted_peak_bytes budget_bytes within_budget enforced "
        "oom_recovered step_s_median samples_per_s plan"), "evaluation notes error"),
    "memfit.verdict/1": (
        ("within_budget same_result fidelity max_rel_loss_diff max_rel_param_diff buffers_equal grad_set_equal enforced "
        "plain planned"), "budget_bytes max_rel_grad_diff slowdown rss_growth_bytes notes demo error"),
}
"""Of each document of the contract: the fields that it must have, and those that were added to it."""


def check_fields(document: dict[str, Any]) -> dict[str, Any]:
    """The document, which has the contract's fields, no unknown ones, and the contract's fields inside them."""
    needed, added = map(_words, FIELDS[document["schema"]])
    assert needed <= set(document) <= needed | added | {"schema"}
    for field, inner in {"error": {"code", "message", "advice"}, "budget": {"device_bytes", "host_bytes", "disk_bytes"},
                         "peak": PEAK, "plain": SIDE, "planned": SIDE,
                         "at_peak": {"phase", "module", "op", "by_category"}}.items():
        if field in document:
            assert set(document[field]) == inner, field
    for field in ("predicted", "baseline"):
        if field in document:
            assert set(document[field]) == {"peak", "step_s"} and set(document[field]["peak"]) == PEAK
    for field, inner in {"strategies": {"name", "settings", "fidelity", "why"}, "rejected": {"name", "reason"},
                         "frontier": {"peak_bytes", "slowdown", "strategies", "simulated"},
                         "largest": {"bytes", "shape", "dtype", "module", "op", "category"}}.items():
        assert all(set(one) == inner for one in document.get(field, ())), field
    if "at_peak" in document:
        assert set(document["at_peak"]["by_category"]) == CATEGORIES
    return document
