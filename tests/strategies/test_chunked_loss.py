"""Cross entropy in chunks: torch's results for every form of the call, without the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memfit.apply import apply_choices
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.strategy import Choice
from memfit.jobs import Job, run_step
from memfit.simulate import simulate
from memfit.strategies.exact.chunked_loss.lazy_logits import LazyLogits
from memfit.strategies.exact.chunked_loss.strategy import STRATEGY, head
from memfit.trace import FakeWorld, fake_job, trace_step

CPU = Device("cpu", "cpu", 1 << 40, {"float32": 1e11}, 1e10)
CLASSES, ROWS, LENGTH = 97, 5, 9


class Tiny(nn.Module):
    """An embedding and a head over its classes, tied or not."""

    def __init__(self, classes: int, tied: bool, bias: bool, width: int = 16) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(classes, width), nn.Linear(width, width)
        self.head = nn.Linear(width, classes, bias=bias)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mix(self.embed(ids))))


def batch_of(
    classes: int = CLASSES, rows: int = ROWS, length: int = LENGTH, kept: str = "some"
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, classes, (rows, length), generator=generator)
    labels = torch.randint(0, classes, (rows, length), generator=generator)
    if kept == "some":
        labels[torch.rand(labels.shape, generator=generator) < 0.7] = -100
    elif kept == "none":
        labels[:] = -100
    return {"ids": ids, "labels": labels}


def both(loss: Callable[[nn.Module, Any], torch.Tensor], *, kept: str = "some", tied: bool = True, bias: bool = True,
         frozen: bool = False, dtype: torch.dtype = torch.float32) -> list[list[torch.Tensor]]:
    """Loss and gradients of plain and of chunked."""
    found: list[list[torch.Tensor]] = []
    for rows in (None, 4):
        torch.manual_seed(0)
        job = Job(Tiny(CLASSES, tied, bias).to(dtype), loss, batch_of(kept=kept), torch.optim.SGD)
        job.model.head.requires_grad_(not frozen)
        if rows:
            apply_choices(job, [Choice("chunked-loss", {"rows": rows, "module": "head"})])
            assert isinstance(job.model(job.batch["ids"]), LazyLogits)
        job.model.zero_grad()
        value = loss(job.model, job.batch)
        value.backward()
        found.append([value.detach(), *(p.grad for p in job.model.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1])
    return found


def close(plain: list[torch.Tensor], chunked: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(plain, chunked, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert (one - other).norm() <= tolerance * one.norm() + 1e-12


FORMS: dict[str, Callable[..., torch.Tensor]] = {
    "view": lambda x, t, **k: F.cross_entropy(x.view(-1, CLASSES), t.view(-1), **k),
    "view to minus one": lambda x, t, **k: F.cross_entropy(x.reshape(ROWS * LENGTH, -1), t.flatten(), **k),
    "flatten, module": lambda x, t, **k: nn.CrossEntropyLoss(**k)(x.flatten(0, 1), t.flatten()),
    "shifted, float, contiguous": lambda x, t, **k: F.cross_entropy(
        x[..., :-1, :].contiguous().view(-1, CLASSES).float(), t[..., 1:].reshape(-1), **k),
    "sliced without dots": lambda x, t, **k: F.cross_entropy(x[1:, :-1].flatten(0, 1), t[1:, 1:].flatten(), **k),
    "transposed": lambda x, t, **k: F.cross_entropy(x.transpose(1, 2), t, **k),
    "permuted": lambda x, t, **k: F.cross_entropy(x.permute(0, 2, 1), t, **k),
    "masked rows": lambda x, t, **k: F.cross_entropy(x[t != -100], t[t != -100], **k),
    "sequence first": lambda x, t, **k: F.cross_entropy(x.transpose(0, 1).flatten(0, 1), t.t().flatten(), **k),
    "to and type": lambda x, t, **k: F.cross_entropy(x.to(t.device).to(torch.float64).flatten(0, 1), t.flatten(), **k),
    "last token": lambda x, t, **k: F.cross_entropy(x[:, -1, :], t[:, -1], **k),
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "mean": {}, "sum": {"reduction": "sum"}, "smoothed": {"label_smoothing": 0.1}, "other ignored": {"ignore_index": 3}}


@pytest.mark.parametrize("arguments", ["mean", "sum", "smoothed"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_call(form: str, arguments: str) -> None:
    close(*both(lambda m, b: FORMS[form](m(b["ids"]), b["labels"], **ARGUMENTS[arguments])))


@pytest.mark.parametrize("kept", ["all", "some", "none"])
@pytest.mark.parametrize("arguments", ["mean", "sum", "smoothed"])
def test_ignored_rows_down_to_all_of_them(kept: str, arguments: str) -> None:
    plain, chunked = both(lambda m, b: FORMS["view"](m(b["ids"]), b["labels"], **ARGUMENTS[arguments]), kept=kept)
    if kept == "none":  # torch gives NaN for a mean over nothing, and zero gradients
        assert torch.equal(plain[0].isnan(), chunked[0].isnan())
        assert all(not gradient.any() for gradient in (*plain[1:], *chunked[1:]))
    else:
        close(plain, chunked)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_tied_frozen_and_without_bias(tied: bool, frozen: bool) -> None:
    for bias in (True, False):
        close(*both(lambda m, b: FORMS["view"](m(b["ids"]), b["labels"]), tied=tied, frozen=frozen, bias=bias))


OTHER: dict[str, Callable[..., torch.Tensor]] = {
    "arithmetic": lambda x, t: (x * 2 + 1).square().mean(),
    "no reduction": lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten(), reduction="none").mean(),
    "class weights": lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten(), weight=torch.linspace(0.5, 1, CLASSES)),
    "probabilities": lambda x, t: F.cross_entropy(x.flatten(0, 1), x.detach().flatten(0, 1).softmax(-1)),
    "log-softmax": lambda x, t: F.nll_loss(x.flatten(0, 1).log_softmax(-1), t.flatten()),
    "flat view": lambda x, t: x.view(-1).square().mean(),
    "vocabulary slice": lambda x, t: x[..., :5].square().mean() + x[:, :, 1].mean(),
    "into an autograd function": lambda x, t: Doubled.apply(x).square().mean(),
    "with a penalty on the logits": lambda x, t: (
        F.cross_entropy(x.flatten(0, 1), t.flatten()) + 1e-2 * x.logsumexp(-1).square().mean()),
    "with its accuracy": lambda x, t: (
        F.cross_entropy(x.flatten(0, 1), t.flatten()) + 0 * (x.argmax(-1) == t).float().mean()),
    "scaled by hand": lambda x, t: F.cross_entropy((x / 2).flatten(0, 1), t.flatten()),
}


class Doubled(torch.autograd.Function):
    """Takes tensors where Python's overrides are not asked."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> torch.Tensor:
        return grad_outputs[0] * 2


@pytest.mark.parametrize("use", OTHER)
def test_any_other_use_of_the_logits_is_right(use: str) -> None:
    close(*both(lambda m, b: OTHER[use](m(b["ids"]), b["labels"])))


Z_LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "function": lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten()) + 1e-2 * torch.logsumexp(x, -1).square().mean(),
    "method, kept dimension": lambda x, t: x.logsumexp(dim=(-1,), keepdim=True).square().sum(),
    "classes second": lambda x, t: torch.logsumexp(x.transpose(1, 2), 1)[t != -100].square().mean(),
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("form", Z_LOSSES)
def test_z_loss_in_chunks(form: str, tied: bool) -> None:
    close(*both(lambda model, batch: Z_LOSSES[form](model(batch["ids"]), batch["labels"]), tied=tied))


def test_z_loss_never_makes_the_logits() -> None:
    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return Z_LOSSES["function"](model(batch["ids"]), batch["labels"])

    job = Job(Tiny(8192, False, False), loss, batch_of(8192, 8, 128), torch.optim.SGD)
    world = FakeWorld()
    fake = fake_job(job, world)
    apply_choices(fake, [Choice("chunked-loss", {"rows": 64, "module": "head"})])
    trace = trace_step(fake, world)
    assert max(storage.nbytes for storage in trace.storages) < 8 * 128 * 8192 * 4 / 8


def test_autocast_and_sixteen_bit_parameters() -> None:
    def under_autocast(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return FORMS["view"](model(batch["ids"]), batch["labels"])

    close(*both(under_autocast), tolerance=1e-2)
    close(*both(lambda m, b: FORMS["view"](m(b["ids"]).float(), b["labels"]), dtype=torch.bfloat16), tolerance=1e-2)
    close(*both(lambda m, b: FORMS["view"](m(b["ids"]), b["labels"]), dtype=torch.bfloat16), tolerance=1e-2)


@pytest.mark.parametrize("form", ["mean", "sum", "smoothed", "all ignored"])
def test_float16_gradients_do_not_vanish_though_they_are_made_before_the_loss_is_scaled(form: str) -> None:
    """4096 rows over 4096 classes: a row's gradient by its logits is 6e-8 in most places, float16's smallest number."""
    classes, half = 4096, Choice("autocast", {"dtype": "float16"})
    how = {"mean": {}, "sum": {"reduction": "sum"}, "smoothed": {"label_smoothing": 0.1}, "all ignored": {}}[form]
    batch = batch_of(classes, 8, 512, "none" if form == "all ignored" else "all")

    def loss(model: nn.Module, data: dict[str, torch.Tensor]) -> torch.Tensor:
        value = F.cross_entropy(model(data["ids"]).flatten(0, 1), data["labels"].flatten(), **how)
        return value * 1e-3 if form == "sum" else value

    found: list[dict[str, torch.Tensor]] = []
    for choices in ([], [half], [half, Choice("chunked-loss", {"rows": 256, "module": "head"})]):
        torch.manual_seed(0)
        job = Job(Tiny(classes, False, True, 32), loss, batch, lambda parameters: torch.optim.SGD(parameters, lr=0.0))
        apply_choices(job, choices)
        seen: dict[str, torch.Tensor] = {}
        names = dict(job.model.named_parameters())
        note = lambda seen=seen, names=names: seen.update((name, p.grad.clone()) for name, p in names.items())  # noqa: E731
        while run_step(job, job.batch, on_gradients=note).skipped:
            pass
        found.append(seen)
    exact, plain, chunked = found
    for name, gradient in exact.items():
        allowed = 1.5 * (plain[name] - gradient).norm() + 1e-4 * gradient.norm()
        assert (chunked[name] - gradient).norm() <= allowed, name


def test_without_a_graph_and_twice_backward() -> None:
    torch.manual_seed(0)
    model = Tiny(CLASSES, True, True)
    job = Job(model, lambda m, b: FORMS["view"](m(b["ids"]), b["labels"]), batch_of(), torch.optim.SGD)
    expected = job.loss(job.model, job.batch)
    apply_choices(job, [Choice("chunked-loss", {"rows": 4, "module": "head"})])
    with torch.no_grad():
        assert abs(job.loss(job.model, job.batch) - expected) < 1e-6
        assert torch.equal(job.model(job.batch["ids"]).argmax(-1), job.model(job.batch["ids"]).softmax(-1).argmax(-1))
    loss = job.loss(job.model, job.batch)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_facts_about_the_logits_cost_nothing() -> None:
    torch.manual_seed(0)
    job = Job(Tiny(CLASSES, True, True), lambda m, b: m(b["ids"]).mean(), batch_of(), torch.optim.SGD)
    apply_choices(job, [Choice("chunked-loss", {"rows": 4, "module": "head"})])
    logits = job.model(job.batch["ids"])
    assert isinstance(logits, torch.Tensor)
    assert (logits.shape, logits.dtype, logits.dim(), len(logits)) == ((ROWS, LENGTH, CLASSES), torch.float32, 3, ROWS)
    assert logits.requires_grad and logits.numel() == ROWS * LENGTH * CLASSES
    assert logits.untyped_storage().nbytes() == 0
    assert logits.memfit_full is None
    assert "tensor(" in repr(logits)


def language_model(kept: str = "some") -> Job:
    torch.manual_seed(0)
    return Job(Tiny(8192, True, False, 32),
               lambda m, b: F.cross_entropy(m(b["ids"]).flatten(0, 1), b["labels"].flatten()),
               batch_of(8192, 4, 256, kept), lambda ps: torch.optim.SGD(ps, lr=0.1))


@pytest.mark.parametrize("kept", ["some", "all"])
def test_the_head_is_found_and_the_peak_at_the_loss_is_gone(kept: str) -> None:
    job, world = language_model(kept), FakeWorld()
    fake = fake_job(job, world)
    trace_step(fake, world)
    plain = trace_step(fake, world)
    assert head(fake, plain) == ("head", 1024)
    choices = STRATEGY.choices(fake, plain, CPU)
    assert choices == [{"rows": rows, "module": "head"} for rows in (256, 64, 32)]
    logits_bytes = 1024 * 8192 * 4
    peaks = [simulate(plain, CPU).peak.allocated_bytes]
    for settings in choices:
        undo = apply_choices(fake, [Choice("chunked-loss", settings)])
        peaks.append(simulate(trace_step(fake, world), CPU).peak.allocated_bytes)
        undo()
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > 2 * logits_bytes > logits_bytes / 4 > peaks[-1]


def test_models_without_such_a_layer_say_so() -> None:
    job = Job(nn.Linear(4, 8), lambda m, b: m(b).mean(), torch.randn(3, 4), torch.optim.SGD)
    assert "4096 outputs" in str(STRATEGY.excluded(job, CPU))
    for settings, said in (({"rows": 0, "module": ""}, "chunked-loss: rows is 0"),
                           ({"rows": 4, "module": "nowhere"}, "chunked-loss: 'nowhere' is not a plain nn.Linear"),
                           ({"module": ""}, "chunked-loss has a setting 'rows', which is not given")):
        with pytest.raises(UsageError, match=said):
            apply_choices(job, [Choice("chunked-loss", settings)])


def huggingface(kind: str) -> Job:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small: dict[str, Any] = {"vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "gpt2":
        model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, **small))
    elif kind == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, **small))
    else:
        model = transformers.BertForMaskedLM(transformers.BertConfig(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, **small))
    batch = batch_of(96)
    return Job(model.eval(), lambda m, b: m(input_ids=b["ids"], labels=b["labels"]).loss, batch,
               lambda ps: torch.optim.SGD(ps, lr=0.1))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_hugging_face_language_models(kind: str) -> None:
    module = "cls.predictions.decoder" if kind == "bert" else "lm_head"
    found: list[list[torch.Tensor]] = []
    for choices in ([], [Choice("chunked-loss", {"rows": 4, "module": module})]):
        job = huggingface(kind)
        apply_choices(job, choices)
        gradients: list[torch.Tensor] = []
        loss = run_step(job, job.batch, on_gradients=lambda seen=gradients, m=job.model: seen.extend(
            p.grad.clone() for p in m.parameters() if p.grad is not None)).loss
        found.append([loss, *gradients])
        if choices:
            output = job.model(input_ids=job.batch["ids"], labels=job.batch["labels"])
            assert output.logits.memfit_full is None  # the loss did not compute them
    whole = torch.stack([g.norm() for g in found[0][1:]]).norm()
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() <= 1e-5 * max(one.norm(), 1e-6 * whole)
