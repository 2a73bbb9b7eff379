"""Finding strategies, ordering them, refusing what cannot be, and unwinding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from matrix import ROWS, mixed_job
from strategy_checks import snapshot

import memfit.strategies.exact
from memfit.apply import apply_choices, ordered, plan_fidelity, strategies, strategy
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Choice

NEW = '''
from memfit.core.fidelity import Fidelity

class Nothing:
    name, settings, takes, after = "nothing", (), frozenset({"loss"}), ("micro-batches",)
    conflicts = {"checkpoint": "it is only a test"}
    def excluded(self, job, target): return None
    def fidelity(self, job, settings): return Fidelity.REDUCED
    def choices(self, job, trace, target): return [{}]
    def apply(self, job, settings, undo): job.name = "applied"; undo.push(lambda: setattr(job, "name", ""))
    def code(self, settings): return None

STRATEGY = Nothing()
'''


@pytest.fixture
def new_strategy(tmp_path: Path) -> Iterator[None]:
    """A strategy added as one file."""
    (tmp_path / "nothing.py").write_text(NEW)
    memfit.strategies.exact.__path__.append(str(tmp_path))
    strategies.cache_clear()
    yield
    memfit.strategies.exact.__path__.remove(str(tmp_path))
    strategies.cache_clear()


def test_one_file_is_a_strategy(new_strategy: None) -> None:
    job, mix = mixed_job(), [Choice("nothing"), Choice("micro-batches", {"count": 2})]
    assert strategy("nothing").name == "nothing"
    assert [choice.name for choice in ordered(mix)] == ["micro-batches", "nothing"]
    undo = apply_choices(job, mix)
    assert job.name == "applied"
    undo()
    assert job.name == ""


def test_conflicts_name_pair_place_reason_and_what_to_drop(new_strategy: None) -> None:
    with pytest.raises(UsageError) as named:
        apply_choices(mixed_job(), [Choice("checkpoint", {"modules": []}), Choice("nothing")])
    assert named.value.message == "checkpoint and nothing cannot be combined (loss): it is only a test"
    assert named.value.advice == "drop checkpoint or nothing from the plan"
    with pytest.raises(UsageError, match="each needs the loss for itself"):
        apply_choices(mixed_job(), [Choice("chunked-loss", {"rows": 2, "module": "head"}), Choice("nothing")])
    with pytest.raises(UsageError, match="micro-batches is in the plan twice"):
        apply_choices(mixed_job(), [Choice("micro-batches", {"count": 2}), Choice("micro-batches", {"count": 4})])


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(UsageError) as unknown:
        apply_choices(mixed_job(), [Choice("checkpoints")])
    assert "checkpoint" in unknown.value.advice
    with pytest.raises(UsageError) as unknown:
        strategy("xyz")
    assert "micro-batches" in unknown.value.advice


def test_a_failure_half_way_unwinds() -> None:
    job = mixed_job()
    before = snapshot(job)
    good = [row.choice for row in ROWS if row.name in ("autocast", "micro-batches", "chunked-loss", "recompute")][:3]
    with pytest.raises(UsageError, match="nowhere"):
        apply_choices(job, [*good, Choice("checkpoint", {"modules": ["blocks.0", "nowhere"]})])
    assert snapshot(job) == before
    job.zero_grad = "before_forward"
    with pytest.raises(UsageError, match="keeps gradients"):
        apply_choices(job, [row.choice for row in ROWS if row.name in ("checkpoint", "step-in-backward")])
    assert snapshot(job) == before


def test_the_furthest_part_decides_the_fidelity() -> None:
    job = mixed_job(batchnorm=False, dropout=0.0)
    by_name = {row.name: row.choice for row in ROWS}
    assert plan_fidelity(job, []) is Fidelity.BITWISE
    assert plan_fidelity(job, [by_name["checkpoint"], by_name["step-in-backward"]]) is Fidelity.BITWISE
    assert plan_fidelity(job, [by_name["checkpoint"], by_name["chunked-loss"]]) is Fidelity.REORDERED
    assert plan_fidelity(job, [by_name["autocast"], by_name["micro-batches"]]) is Fidelity.REDUCED
    assert plan_fidelity(mixed_job(batchnorm=False), [by_name["micro-batches"]]) is Fidelity.RESAMPLED
    assert plan_fidelity(mixed_job(), [by_name["micro-batches"], by_name["autocast"]]) is Fidelity.ADAPTED
