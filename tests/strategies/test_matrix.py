"""Every strategy and every pair: what is declared holds, and all of it can be taken back."""

from __future__ import annotations

import copy
import pickle
import warnings
import zlib
from itertools import combinations

import pytest
import torch
from matrix import ROWS, Row, mixed_job
from strategy_checks import Outcome, check, outcome, snapshot

from memfit.apply import apply_choices, conflict, plan_fidelity, strategies
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.trace import FakeWorld, fake_job, trace_step

ALONE = [(row,) for row in ROWS]
PAIRS = [pair for pair in combinations(ROWS, 2) if pair[1].name not in pair[0].refuses]


def is_slow(rows: tuple[Row, ...]) -> bool:
    """All pairs take minutes: the quick part has a quarter of them, drawn by their names."""
    return any(row.slow for row in rows) or (len(rows) > 1 and zlib.crc32(mix_name(rows).encode()) % 4 > 0)


def mix_name(rows: tuple[Row, ...]) -> str:
    return " + ".join(row.name for row in rows)


EACH = [pytest.param(row, id=row.name, marks=pytest.mark.slow if row.slow else ()) for row in ROWS]
MIXES = [pytest.param(rows, marks=pytest.mark.slow if is_slow(rows) else ()) for rows in (*ALONE, *PAIRS)]
# as it is; and without what makes the result of micro-batches another one on purpose
SUBJECTS = {"as it is": {}, "no dropout or BatchNorm": {"dropout": 0.0, "batchnorm": False}}
_plain: dict[str, Outcome] = {}


def plain(subject: str) -> Outcome:
    if subject not in _plain:
        _plain[subject] = outcome(mixed_job(**SUBJECTS[subject]))
    return _plain[subject]


def test_every_strategy_has_a_row() -> None:
    assert {row.name for row in ROWS} == set(strategies())


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("rows", MIXES, ids=mix_name)
def test_declared_fidelity_holds_and_undo_is_exact(rows: tuple[Row, ...], subject: str) -> None:
    job = mixed_job(**SUBJECTS[subject])
    choices = [row.choice for row in rows]
    before = snapshot(job)
    undo = apply_choices(job, choices)
    declared = plan_fidelity(job, choices)
    assert list(job.model.state_dict()) == before["keys"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scheduler that saw no optimizer step would warn
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor")  # the compiler looks at what it is given
        planned = outcome(job)
    if (declared is Fidelity.RESAMPLED or any(row.draws for row in rows)) and subject == "as it is":
        assert all(torch.isfinite(loss) for loss in planned.losses)  # other random draws: compared without dropout
    else:
        check(plain(subject), planned, declared)
    undo()
    after = snapshot(job)
    assert set(after.pop("states")) == set(plain(subject).states)
    before.pop("states")
    for group in (*before["groups"], *after["groups"]):
        group.pop("lr"), group.pop("initial_lr")  # the scheduler's
    assert after == before


@pytest.mark.parametrize("rows", MIXES, ids=mix_name)
def test_applied_and_undone_before_training_is_plain(rows: tuple[Row, ...]) -> None:
    job = mixed_job()
    apply_choices(job, [row.choice for row in rows])()
    rounded = any(row.rounds for row in rows)
    check(plain("as it is"), outcome(job), Fidelity.REDUCED if rounded else Fidelity.BITWISE)


@pytest.mark.parametrize("row", EACH)
def test_model_pickles_and_copies(row: Row) -> None:
    job = mixed_job(dropout=0.0)
    apply_choices(job, [row.choice])
    for other in (pickle.loads(pickle.dumps(job.model)), copy.deepcopy(job.model)):
        assert list(other.state_dict()) == list(job.model.state_dict())
        assert other.head.weight is other.embed.weight
        assert not {id(m) for m in other.modules()} & {id(m) for m in _bound(other)[1]}
        assert {id(m) for m in _bound(other)[0]} <= {id(m) for m in other.modules()}
        other.zero_grad()
        job.loss(other, job.batch).backward()
        assert other.embed.weight.grad is not None


def _bound(model: torch.nn.Module) -> tuple[list[torch.nn.Module], list[torch.nn.Module]]:
    """Modules that overridden forwards are bound to: the model's own, and foreign ones."""
    bound = [m.__dict__["forward"].args[0] for m in model.modules() if "forward" in m.__dict__]
    own = {id(m) for m in model.modules()}
    return [m for m in bound if id(m) in own], [m for m in bound if id(m) not in own]


@pytest.mark.parametrize("row", EACH)
def test_fake_and_real_jobs_take_the_same_code(row: Row) -> None:
    world = FakeWorld()
    fake = fake_job(mixed_job(), world)
    before = snapshot(fake)
    undo = apply_choices(fake, [row.choice])
    trace_step(fake, world)
    undo()
    after = snapshot(fake)
    for key in ("modules", "rules", "loss"):
        assert after[key] == before[key]


def test_pairs_that_cannot_be_are_refused_with_the_reason() -> None:
    for one, other in combinations(ROWS, 2):
        reason = conflict([one.choice, other.choice])
        assert (reason is not None) == (other.name in one.refuses), (one.name, other.name)
        if reason is None:
            continue
        job = mixed_job()
        before = snapshot(job)
        with pytest.raises(UsageError) as refused:
            apply_choices(job, [one.choice, other.choice])
        assert one.name in refused.value.message and other.name in refused.value.message
        assert f"drop {one.name} or {other.name}" in refused.value.advice
        assert snapshot(job) == before
