"""Sessions: the plain step, micro-batches with a checked weight, and what is left out."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from memfit.core.errors import UsageError
from memfit.core.strategy import Choice
from memfit.jobs import Job
from memfit.train import Session

TWO = [Choice("micro-batches", {"count": 2})]


def job(seed: int = 0, samples: int = 8, **options: object) -> Job:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 5))
    batch = {"x": torch.randn(samples, 6), "labels": torch.arange(samples) % 5}
    return Job(model, lambda m, b: F.cross_entropy(m(b["x"]), b["labels"]), batch,
               lambda p: torch.optim.AdamW(p, lr=0.01), **options)  # type: ignore[arg-type]


def test_plain_session_is_a_hand_written_loop_to_the_bit() -> None:
    ours = job(clip_norm=0.5, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5))
    theirs = job()
    optimizer, scheduler = theirs.optimizer, torch.optim.lr_scheduler.StepLR(theirs.optimizer, 2, 0.5)
    losses = []
    for _ in range(5):
        loss = theirs.loss(theirs.model, theirs.batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    with Session(ours) as session:
        outputs = [session.step() for _ in range(5)]
    assert [out.loss for out in outputs] == losses
    assert all(torch.equal(a, b) for a, b in zip(ours.model.parameters(), theirs.model.parameters()))
    assert [out.profiled for out in outputs] == [True, True, False, False, False]
    assert outputs[4].peak_bytes == outputs[1].peak_bytes > 0
    assert outputs[0].grad_norm is not None


def test_micro_batches_with_unequal_labels_give_the_gradients_of_the_whole() -> None:
    gradients: list[list[torch.Tensor]] = []
    for choices in ([], TWO):
        one = job()
        one.batch["labels"][:3] = -100  # 1 label counts in the first half, 4 in the second
        seen: list[torch.Tensor] = []
        with Session(one, choices) as session:
            parameters = list(one.model.parameters())
            out = session.step(on_gradients=lambda p=parameters, seen=seen: seen.extend(q.grad.clone() for q in p))
        gradients.append(seen)
        assert out.micro_batches == len(choices) + 1
    for whole, parts in zip(*gradients):
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-7)


def test_class_weights_are_refused_for_micro_batches_with_the_numbers() -> None:
    weighted = job()
    weighted.loss = lambda m, b: F.cross_entropy(m(b["x"]), b["labels"], weight=torch.tensor([1.0, 9, 1, 5, 2]))
    with pytest.raises(UsageError, match=r"micro-batches would change the result.*by labels 0\.\d+.*by samples 0\.\d+"):
        Session(weighted, TWO)
    assert weighted.weight is None and weighted.rules.micro_batches == 1
    weighted.weight = lambda b: float(torch.tensor([1.0, 9, 1, 5, 2])[b["labels"]].sum())
    with Session(weighted, TWO) as session:
        assert math.isfinite(session.step().loss)


def test_parts_and_batches_without_a_label_are_left_out_with_a_line() -> None:
    one = job()
    with Session(one, TWO) as session:
        first = session.step({"x": torch.randn(8, 6), "labels": torch.tensor([-100] * 4 + [1, 2, 3, 4])})
        before = [p.clone() for p in one.model.parameters()]
        second = session.step({"x": torch.randn(8, 6), "labels": torch.full((8,), -100)})
        session.step({"x": torch.randn(8, 6), "labels": torch.full((8,), -100)})  # one line for all of them
    assert (first.left_out, first.micro_batches) == (1, 1) and math.isfinite(first.loss)
    assert second.skipped and all(torch.equal(a, b) for a, b in zip(before, one.model.parameters()))
    assert len(session.notes) == 2 and "every label" in session.notes[1]


def test_a_batch_of_one_is_trained_whole() -> None:
    with Session(job(), TWO) as session:
        out = session.step({"x": torch.randn(1, 6), "labels": torch.tensor([2])})
    assert out.micro_batches == 1 and "one sample" in session.notes[0]


def test_a_loss_that_is_not_finite_updates_nothing() -> None:
    one = job()
    with Session(one) as session:
        session.step()
        before = {k: v.clone() for k, v in one.model.state_dict().items()}
        with pytest.raises(UsageError, match="the loss is nan at step 2"):
            session.step({"x": torch.full((8, 6), math.nan), "labels": torch.zeros(8, dtype=torch.long)})
    assert all(torch.equal(before[k], v) for k, v in one.model.state_dict().items())
    assert all(p.grad is None for p in one.model.parameters())


def test_closing_takes_everything_back() -> None:
    one = job()
    session = Session(one, TWO)
    assert one.rules.micro_batches == 2 and one.weight is not None
    session.close()
    session.close()
    assert one.rules.micro_batches == 1 and one.weight is None
    with pytest.raises(UsageError, match="closed"):
        session.step()


def test_evaluate_runs_without_graph_and_puts_the_modes_back() -> None:
    one = job()
    one.model[1].eval()
    seen: list[bool] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.extend([model.training, torch.is_grad_enabled()])
        return {"loss": float(one.loss(model, one.batch))}

    one.evaluate = evaluate
    with Session(one) as session:
        assert session.evaluate()["loss"] > 0
    assert seen == [False, False]
    assert [m.training for m in one.model] == [True, False, True]


def test_mistakes_in_the_users_loss_are_told_with_their_line() -> None:
    broken = job()
    broken.loss = lambda m, b: b["missing"]
    with Session(broken) as session, pytest.raises(UsageError, match=r"step 1 raised KeyError: 'missing'") as caught:
        session.step()
    assert "test_session.py, line" in caught.value.advice


@pytest.mark.parametrize(("message", "ours"), [
    ("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to", True),
    ("could not create a primitive", True), ("std::bad_alloc", True),
    ("mat1 and mat2 shapes cannot be multiplied", False)])
def test_refused_memory_is_recognised(message: str, ours: bool) -> None:
    from memfit.train.failures import is_out_of_memory

    assert is_out_of_memory(RuntimeError(message)) is ours
    assert is_out_of_memory(MemoryError())
