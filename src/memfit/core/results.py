"""Results as frozen dataclasses: attributes carry the names of the JSON fields (the contract in the docs)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from memfit.core.files import toml_text, write_atomic

_html_renderer: list[Callable[[Result], str]] = []


def register_html(renderer: Callable[[Result], str]) -> None:
    """`api` registers the renderer of notebooks here, so that `core` need not know `report`."""
    _html_renderer[:] = [renderer]


def plain(value: Any) -> Any:
    """`value` as JSON types: dataclasses to dicts, enums to values, tuples to lists; fields marked `hidden` left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if not f.metadata.get("hidden")}
        schema = getattr(value, "schema", None)
        return {"schema": schema, **shown} if isinstance(schema, str) else shown
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


class Result:
    """What every result can do: `.to_dict()`, `.save(path)`, and show itself in a notebook."""

    schema: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        return plain(self)

    def save(self, path: str | Path) -> None:
        """Write the document beside `path`, then rename: TOML if the name ends in `.toml`, else JSON. Raises UsageError
        if it cannot be written."""
        toml = Path(path).suffix == ".toml"
        write_atomic(Path(path), toml_text(self.to_dict()) if toml else json.dumps(self.to_dict(), indent=2) + "\n")

    def _repr_html_(self) -> str:
        return _html_renderer[0](self) if _html_renderer else f"<pre>{self!r}</pre>"


@dataclass(frozen=True)
class Peak:
    """Bytes, as predicted; `low_bytes` and `high_bytes` bound what is compared with a budget."""

    allocated_bytes: int
    allocated_low_bytes: int
    allocated_high_bytes: int
    reserved_bytes: int
    reserved_low_bytes: int
    reserved_high_bytes: int
    process_bytes: int
    low_bytes: int
    high_bytes: int


@dataclass(frozen=True)
class AtPeak:
    phase: str
    module: str
    op: str
    by_category: Mapping[str, int]


@dataclass(frozen=True)
class LargeTensor:
    """One of the largest storages alive at the peak."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    module: str
    op: str
    category: str


@dataclass(frozen=True)
class Timeline:
    """Bytes by category over the step, thinned to what a picture can show; `x` counts events. `phases` are
    `(name, first x)`; `at_peak` says where the peak is, where that is known."""

    x: tuple[int, ...]
    by_category: Mapping[str, tuple[int, ...]]
    phases: tuple[tuple[str, int], ...]
    peak_x: int
    peak_bytes: int
    at_peak: AtPeak | None = None


@dataclass(frozen=True)
class Estimate(Result):
    """`fits` says whether a CUDA card, of `capacity_bytes`, has room for it, also at the upper end; None on the CPU."""

    schema: ClassVar[str] = "memfit.estimate/1"
    target: str
    device: str
    peak: Peak
    first_step_peak_bytes: int
    at_peak: AtPeak
    largest: tuple[LargeTensor, ...]
    step_s: float
    took_s: float
    measured: bool = False
    notes: tuple[str, ...] = ()
    timeline: Timeline | None = field(default=None, metadata={"hidden": True})
    fits: bool | None = None
    capacity_bytes: int | None = None


@dataclass(frozen=True)
class Budget:
    device_bytes: int
    host_bytes: int | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True)
class PlannedStrategy:
    name: str
    settings: Mapping[str, Any]
    fidelity: str
    why: str


@dataclass(frozen=True)
class Predicted:
    peak: Peak
    step_s: float


@dataclass(frozen=True)
class Rejected:
    name: str
    reason: str


@dataclass(frozen=True)
class FrontierPoint:
    """`strategies` are `{name, settings}`; `simulated` is false where the peak is a bound."""

    peak_bytes: int
    slowdown: float
    strategies: tuple[Mapping[str, Any], ...]
    simulated: bool


@dataclass(frozen=True)
class Plan(Result):
    """Strategies in order, what was predicted, what was rejected and why. `fits` false: nothing allowed fits."""

    schema: ClassVar[str] = "memfit.plan/1"
    target: str
    device: str
    budget: Budget
    fits: bool
    fidelity: str
    strategies: tuple[PlannedStrategy, ...]
    predicted: Predicted
    baseline: Predicted
    slowdown: float
    floor_bytes: int
    rejected: tuple[Rejected, ...]
    frontier: tuple[FrontierPoint, ...]
    largest_batch: int | None
    took_s: float
    model_hash: str = ""
    memfit_version: str = ""
    notes: tuple[str, ...] = ()
    timeline: Timeline | None = field(default=None, metadata={"hidden": True})
    baseline_timeline: Timeline | None = field(default=None, metadata={"hidden": True})
    source: str | None = field(default=None, metadata={"hidden": True})

    def code(self) -> str:
        """The plan as plain PyTorch source where PyTorch has the means; else it names what needs memfit."""
        return self.source or ""


@dataclass(frozen=True)
class Run(Result):
    schema: ClassVar[str] = "memfit.run/1"
    steps: int
    loss_first: float
    loss_last: float
    peak_bytes: int
    rss_peak_bytes: int
    predicted_peak_bytes: int
    budget_bytes: int | None
    within_budget: bool | None
    enforced: bool
    oom_recovered: int
    step_s_median: float
    samples_per_s: float
    plan: Mapping[str, Any]
    evaluation: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """One side of a verdict; `survives_budget` is null where nothing was enforced."""

    peak_bytes: int
    step_s_median: float
    survives_budget: bool | None


@dataclass(frozen=True)
class Verdict(Result):
    schema: ClassVar[str] = "memfit.verdict/1"
    within_budget: bool
    same_result: bool
    fidelity: str
    max_rel_loss_diff: float
    max_rel_param_diff: float
    buffers_equal: bool
    grad_set_equal: bool
    enforced: bool
    plain: Side
    planned: Side
    budget_bytes: int = 0
    max_rel_grad_diff: float = 0.0
    slowdown: float = 0.0
    rss_growth_bytes: int | None = None
    notes: tuple[str, ...] = ()
    demo: Mapping[str, Any] | None = None
