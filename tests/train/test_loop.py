"""The loop: epochs, log, checkpoints, resume to the bit, and ends that are not the planned one."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from memfit.core.errors import Interrupted, UsageError
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.jobs.randomness import seed_everything
from memfit.recipes import load
from memfit.train import LoopSettings, Session, train
from memfit.train.checkpoints import checkpoints, find_checkpoint
from memfit.train.loop import Outcome
from memfit.train.tensor_files import TensorFile

SMALL = f"{Path(__file__).with_name('train_targets.py')}:small"


def run(
    settings: LoopSettings, choices: list[Choice] | None = None, target: dict[str, Any] | None = None
) -> tuple[Outcome, Job]:
    """As a fresh process would: the same seed, the target called again."""
    seed_everything(0)
    job = load(SMALL, target or {})
    _ = job.model, job.optimizer, job.scheduler
    with Session(job, choices or [], profile_peaks=False) as session:
        return train(session, settings), job


def assert_same(one: Path, other: Path) -> None:
    for name in ("model", "optimizer"):
        a, b = TensorFile(one / f"{name}.safetensors"), TensorFile(other / f"{name}.safetensors")
        assert set(a) == set(b) and len(set(a)) > 3
        assert all(torch.equal(a.read(key), b.read(key)) for key in a)


def test_epochs_are_logged_evaluated_and_saved(tmp_path: Path) -> None:
    outcome, job = run(LoopSettings(epochs=2, out=tmp_path))
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    evaluations = [line["evaluation"] for line in lines if "evaluation" in line]
    assert len(evaluations) == 2 and evaluations[-1] == outcome.evaluation and 0 <= evaluations[-1]["accuracy"] <= 1
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000006", "step-00000012"]
    assert job.optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 * 0.5**3)


@pytest.mark.parametrize("stop", [4, 6, 9])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, stop: int) -> None:
    whole, _ = run(LoopSettings(epochs=2, out=tmp_path / "whole"))
    run(LoopSettings(steps=stop, out=tmp_path / "parts"))
    resumed, _ = run(LoopSettings(epochs=2, out=tmp_path / "parts", resume=tmp_path / "parts"))
    assert whole.losses[stop:] == resumed.losses
    assert_same(checkpoints(tmp_path / "whole")[-1], checkpoints(tmp_path / "parts")[-1])


def test_ctrl_c_finishes_the_step_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Session.step

    def interrupted(self: Session, *args: Any, **options: Any) -> Any:
        if self.steps == 3:
            signal.raise_signal(signal.SIGINT)
        return step(self, *args, **options)

    monkeypatch.setattr(Session, "step", interrupted)
    with pytest.raises(Interrupted, match="after step 4; step 4 is saved"):
        run(LoopSettings(epochs=2, out=tmp_path / "parts"))
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    run(LoopSettings(epochs=2, out=tmp_path / "parts", resume=tmp_path / "parts"))
    run(LoopSettings(epochs=2, out=tmp_path / "whole"))
    assert_same(checkpoints(tmp_path / "whole")[-1], checkpoints(tmp_path / "parts")[-1])


def test_nan_stops_and_keeps_the_state_before_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the loss is nan at step 4; .*step 3 is kept in"):
        run(LoopSettings(epochs=1, out=tmp_path / "nan"), target={"nan_at": 3})
    run(LoopSettings(steps=3, out=tmp_path / "good"))
    found = find_checkpoint(tmp_path / "nan")
    assert found.name == "step-00000003"
    assert_same(found, checkpoints(tmp_path / "good")[-1])


def test_half_written_checkpoints_are_not_seen(tmp_path: Path) -> None:
    run(LoopSettings(steps=2, out=tmp_path))
    (tmp_path / "checkpoints" / ".step-00000009.1").mkdir()
    (tmp_path / "checkpoints" / "step-00000010").mkdir()
    assert find_checkpoint(tmp_path).name == "step-00000002"
    with pytest.raises(UsageError, match="has no checkpoint"):
        find_checkpoint(tmp_path / "checkpoints")


def test_a_checkpoint_of_another_model_or_damaged_is_refused(tmp_path: Path) -> None:
    run(LoopSettings(steps=2, out=tmp_path))
    seed_everything(0)
    job = load(SMALL)
    job.model[4] = torch.nn.Linear(32, 5)
    with Session(job) as session, pytest.raises(UsageError, match="is of another model"):
        train(session, LoopSettings(steps=4, resume=tmp_path))
    rest = checkpoints(tmp_path)[-1] / "rest.pt"
    rest.write_bytes(rest.read_bytes()[:100])
    with pytest.raises(UsageError, match="cannot be read"):
        run(LoopSettings(steps=4, resume=tmp_path))


def test_other_exact_strategies_may_go_on_and_it_is_said(tmp_path: Path) -> None:
    run(LoopSettings(steps=2, out=tmp_path / "parts"))
    resumed, _ = run(LoopSettings(steps=5, out=tmp_path / "parts", resume=tmp_path / "parts"),
                     [Choice("checkpoint", {"modules": ["4"]})])
    assert any("resumed under checkpoint" in note for note in resumed.notes)
    run(LoopSettings(steps=5, out=tmp_path / "whole"))
    assert_same(checkpoints(tmp_path / "whole")[-1], checkpoints(tmp_path / "parts")[-1])


def test_states_come_back_in_the_dtype_that_they_had(tmp_path: Path) -> None:
    class Halved(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step(closure)
            for state in self.state.values():
                state["momentum_buffer"] = state["momentum_buffer"].to(torch.bfloat16).to(torch.bfloat16)

    def make() -> Job:
        torch.manual_seed(0)
        return Job(torch.nn.Linear(4, 4), lambda m, b: m(b).square().mean(), torch.ones(2, 4),
                   lambda p: Halved(p, lr=0.1, momentum=0.9))

    first, second = make(), make()
    with Session(first) as session:
        train(session, LoopSettings(steps=1, out=tmp_path))
    with Session(second) as session:
        train(session, LoopSettings(steps=1, resume=tmp_path))
    states = [list(job.optimizer.state.values()) for job in (first, second)]
    assert states[1][0]["momentum_buffer"].dtype == torch.bfloat16
    assert all(torch.equal(a["momentum_buffer"], b["momentum_buffer"]) for a, b in zip(*states))


def test_bad_settings_and_data_are_told(tmp_path: Path) -> None:
    job = load(SMALL)
    job.data = None
    with Session(job) as session, pytest.raises(UsageError, match="--epochs needs data"):
        train(session, LoopSettings(epochs=1))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        run(LoopSettings(steps=1, out=tmp_path / "file" / "run"))
    used_up: Iterator[Any] = iter([job.batch])
    job = load(SMALL)
    job.data = used_up
    with Session(job) as session, pytest.raises(UsageError, match="no batch in epoch 2"):
        train(session, LoopSettings(epochs=2))


def test_the_model_file_is_plain_safetensors(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    _, job = run(LoopSettings(steps=2, out=tmp_path))
    loaded = safetensors.load_file(str(find_checkpoint(tmp_path) / "model.safetensors"))
    assert all(torch.equal(value, loaded[name]) for name, value in job.model.state_dict().items())


def test_a_resumed_run_that_is_as_long_as_asked_says_so(tmp_path: Path) -> None:
    run(LoopSettings(steps=3, out=tmp_path))
    resumed, _ = run(LoopSettings(steps=2, resume=tmp_path))
    assert resumed.losses == [] and "nothing was left to train: the run is at step 3" in resumed.notes[-1]
