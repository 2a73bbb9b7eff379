"""Each recipe's job: real steps, seeded weights and batches, declared weights, evaluation that leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from memfit.core.errors import UsageError
from memfit.jobs import Job, batches, run_step
from memfit.recipes import RECIPES, recipe
from memfit.recipes.making import OPTIMIZERS

TINY: dict[str, dict[str, Any]] = {
    "vit-mini": {"batch": 8, "image": 16},
    "resnet18": {"batch": 4, "image": 32},
    "mobilenet-v3": {"batch": 4, "image": 32},
    "bert-mini": {"batch": 8, "seq": 32},
    "gpt-mini": {"batch": 4, "seq": 32},
    "llama-mini": {"batch": 4, "seq": 32, "vocab": 1024},
}
BIG: dict[str, dict[str, Any]] = {
    "vit-s16": {"batch": 1, "image": 32},
    "vit-base": {"batch": 1, "image": 32},
    "resnet50": {"batch": 2, "image": 64},
    "efficientnet-b0": {"batch": 2, "image": 64},
    "bert-base": {"batch": 1, "seq": 16},
    "gpt2": {"batch": 1, "seq": 16},
}
MLM = {**TINY["bert-mini"], "task": "mlm"}


def check_a_job(name: str, settings: dict[str, Any]) -> None:
    job = recipe(name, **settings)
    assert batches.size(job.batch) == settings["batch"]
    before = [parameter.detach().clone() for parameter in job.model.parameters()]
    assert torch.isfinite(run_step(job, job.batch).loss)
    trained = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
    moved = sum(not torch.equal(old, new) for old, new in zip(before, trained, strict=True))
    assert moved >= 0.9 * len(trained)
    assert job.data is not None
    again = next(iter(job.data(0)))  # type: ignore[operator]
    assert {k: (v.shape, v.dtype) for k, v in again.items()} == {k: (v.shape, v.dtype) for k, v in job.batch.items()}


def test_every_recipe_is_tried() -> None:
    assert {*TINY, *BIG} == set(RECIPES)


@pytest.mark.parametrize("name", TINY)
def test_a_step_trains(name: str) -> None:
    check_a_job(name, TINY[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", BIG)
def test_a_step_trains_the_big_ones(name: str) -> None:
    check_a_job(name, BIG[name])


def test_weights_and_batches_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    one = recipe("vit-mini", **TINY["vit-mini"])
    state = torch.get_rng_state()
    first = one.model.state_dict()
    assert torch.equal(state, torch.get_rng_state())  # the caller's random draws are untouched
    torch.manual_seed(6)
    two = recipe("vit-mini", **TINY["vit-mini"])
    assert all(torch.equal(first[key], value) for key, value in two.model.state_dict().items())
    assert torch.equal(one.batch["pixel_values"], two.batch["pixel_values"])
    other = recipe("vit-mini", **TINY["vit-mini"], seed=1)
    assert not torch.equal(first["classifier.weight"], other.model.state_dict()["classifier.weight"])
    assert not torch.equal(one.batch["labels"], other.batch["labels"])


@pytest.mark.parametrize(("name", "settings"), [
    ("vit-mini", TINY["vit-mini"]), ("bert-mini", TINY["bert-mini"]), ("bert-mini", MLM),
    ("gpt-mini", TINY["gpt-mini"])])
def test_epochs_are_repeatable_shuffled_and_of_one_size(name: str, settings: dict[str, Any]) -> None:
    job = recipe(name, **settings)
    epoch = job.data  # type: ignore[assignment]
    zero, one = [[next(passed) for _ in range(3)] for passed in (iter(epoch(0)), iter(epoch(1)))]
    again = iter(epoch(0))
    for batch in zero:
        repeated = next(again)
        assert all(torch.equal(batch[key], repeated[key]) for key in batch)
        assert batches.size(batch) == settings["batch"]
    assert any(not torch.equal(zero[0][key], one[0][key]) for key in zero[0])


@pytest.mark.parametrize(("name", "settings"), [
    ("vit-mini", TINY["vit-mini"]), ("bert-mini", TINY["bert-mini"]), ("bert-mini", MLM),
    ("gpt-mini", TINY["gpt-mini"]), ("llama-mini", TINY["llama-mini"])])
def test_the_declared_weight_makes_the_mean_of_parts_the_mean_of_the_whole(name: str, settings: dict[str, Any]) -> None:
    job = recipe(name, **settings, dropout=0.0)
    batch = job.batch
    if "labels" in batch and batch["labels"].dim() == 2:  # make the counts clearly unequal
        batch["labels"][0, 5:] = -100
    parts = batches.split(batch, 4)
    weights = [job.weight(part) for part in parts]  # type: ignore[misc]
    with torch.no_grad():
        losses = [float(job.loss(job.model, part)) for part in parts]
        whole = float(job.loss(job.model, batch))
    assert sum(w * v for w, v in zip(weights, losses, strict=True)) / sum(weights) == pytest.approx(whole, rel=1e-5)
    if batch["labels"].dim() == 2:
        assert len(set(weights)) > 1
        assert float(np.mean(losses)) != pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(("name", "metrics"), [
    ("vit-mini", {"accuracy", "loss"}), ("bert-mini", {"accuracy", "loss"}), ("gpt-mini", {"loss", "perplexity"})])
def test_evaluation_puts_everything_back(name: str, metrics: set[str]) -> None:
    job = recipe(name, **{**TINY[name], "batch": 64})
    frozen = next(module for module in job.model.modules() if isinstance(module, torch.nn.LayerNorm))
    frozen.eval()
    state = torch.get_rng_state()
    assert job.evaluate is not None
    first = job.evaluate(job.model)
    assert set(first) == metrics
    assert first == job.evaluate(job.model)
    assert job.model.training
    assert not frozen.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in job.model.parameters())


def test_held_out_examples_are_never_trained_on() -> None:
    sampler: Any = recipe("vit-mini", batch=64, image=8).data
    held_out = set(sampler.held_out.tolist())
    assert len(held_out) == 359
    assert not held_out & set(sampler._train.tolist())
    assert len(held_out) + len(sampler._train) == 1797


def test_a_batch_larger_than_the_data_repeats_examples() -> None:
    job = recipe("vit-mini", batch=2000, image=8)
    assert batches.size(job.batch) == 2000
    assert len(list(job.data(0))) == 1  # type: ignore[operator, arg-type]


def test_classification_batches_are_padded_and_of_unequal_length() -> None:
    batch = recipe("bert-mini", batch=16, seq=64).batch
    lengths = batch["attention_mask"].sum(1)
    assert len(lengths.unique()) > 3
    assert ((batch["input_ids"] == 0) == (batch["attention_mask"] == 0)).all()
    assert len(batch["labels"].unique()) > 1


def test_masked_labels_are_the_hidden_tokens_and_every_row_asks_one() -> None:
    batch = recipe("bert-mini", batch=16, seq=64, task="mlm").batch
    asked = batch["labels"] != -100
    assert asked.any(1).all()
    assert not (asked & (batch["attention_mask"] == 0)).any()
    share = asked.sum() / batch["attention_mask"].sum()
    assert 0.08 < share < 0.25
    unasked = (batch["input_ids"] == 3) & ~asked
    assert not unasked.any()


def test_the_gpt_head_is_tied_and_padding_asks_nothing() -> None:
    job = recipe("gpt-mini", batch=64, seq=128)
    model: Any = job.model
    assert model.lm_head.weight is model.transformer.wte.weight
    assert not model.config.use_cache
    counts = (job.batch["labels"] != -100).sum(1)
    assert len(counts.unique()) > 1
    assert ((job.batch["labels"] == -100) == (job.batch["input_ids"] == 0)).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps(name: str) -> None:
    job = recipe("vit-mini", batch=2, image=8, optimizer=name)
    before = next(job.model.parameters()).detach().clone()
    run_step(job, job.batch)
    assert not torch.equal(before, next(job.model.parameters()))


def test_an_image_folder_is_read_when_asked_for(tmp_path: Path) -> None:
    for label, colour in (("blue", (0, 0, 255)), ("red", (255, 0, 0))):
        (tmp_path / label).mkdir()
        for number in range(6):
            Image.new("RGB", (20, 12), colour).save(tmp_path / label / f"{number}.png")
    job = recipe("vit-mini", batch=4, image=8, classes=2, data=str(tmp_path))
    red = job.batch["labels"] == 1
    assert (job.batch["pixel_values"][red, 0] == 1).all()
    assert (job.batch["pixel_values"][~red, 0] == -1).all()
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(b"not a picture")
    with pytest.raises(UsageError, match="cannot be read as a picture"):
        next(iter(job.data(0)))  # type: ignore[operator]


def test_text_comes_from_a_file_or_a_folder(tmp_path: Path) -> None:
    for label in ("prose", "verse"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "a.txt").write_text("\n".join(f"{label} line {n}" for n in range(200)))
    lines: Job = recipe("gpt-mini", batch=4, seq=32, data=str(tmp_path / "prose" / "a.txt"))
    text = bytes((lines.batch["input_ids"][0] - 4).clamp(min=0).tolist()).decode()
    assert text.startswith("prose line ")
    kinds = recipe("bert-mini", batch=16, seq=32, vocab=260, classes=2, data=str(tmp_path)).batch
    for row, label in zip(kinds["input_ids"], kinds["labels"], strict=True):
        assert bytes((row[1:6] - 4).tolist()) == (b"prose", b"verse")[int(label)]
    with pytest.raises(UsageError, match="2 classes and the model 1"):
        recipe("bert-mini", classes=1, data=str(tmp_path))


@pytest.mark.slow
def test_the_mini_vision_transformer_learns_the_digits() -> None:
    job = recipe("vit-mini", batch=128)
    assert job.evaluate is not None
    before, steps = job.evaluate(job.model)["accuracy"], 0
    for epoch in range(6):
        for batch in job.data(epoch):  # type: ignore[operator]
            run_step(job, batch)
            steps += 1
    assert steps == 66
    assert before < 0.3
    assert job.evaluate(job.model)["accuracy"] >= 0.85
