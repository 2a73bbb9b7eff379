"""Attention written out: every form of it gives torch's results through the fused call, or stays as it was written."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from memfit.apply import apply_choices, strategies
from memfit.core.device import Device
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Choice
from memfit.core.trace import Trace
from memfit.jobs import Job, run_step
from memfit.monitor.measure import measure_step
from memfit.plan import make_plan
from memfit.simulate.simulation import peak_of
from memfit.strategies.exact.attention import STRATEGY
from memfit.strategies.exact.attention.lazy import Lazy
from memfit.strategies.exact.attention.written import written_attention
from memfit.trace import FakeWorld, fake_job, trace_step

CPU = Device("cpu", "cpu", 1 << 40, {"float32": 1e11}, 1e10)
KERNEL = "_scaled_dot_product_flash_attention_for_cpu"
ROWS, LENGTH, HEADS, SIDE = 3, 24, 2, 8
Core = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def hidden(whole_rows: bool = False) -> torch.Tensor:
    """True where a query must not look: what comes later, and in the first sample the first keys, or even all, for the last
    queries."""
    mask = torch.ones(LENGTH, LENGTH).triu(1).bool().expand(ROWS, 1, LENGTH, LENGTH).clone()
    mask[0, :, 20:, :LENGTH if whole_rows else 10] = True
    return mask


def scaled_and_filled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(SIDE)
    return torch.matmul(F.softmax(scores.masked_fill(mask, -1e9), dim=-1), v)


def infinite(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-2, -1)) * (1.0 / SIDE)
    return scores.masked_fill(mask[-1:] == 1, float("-inf")).softmax(-1) @ v


def added(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = mask.float() * torch.finfo(torch.float32).min + (q / math.sqrt(SIDE)) @ k.mT
    return torch.softmax(scores.float(), dim=3, dtype=torch.float32).to(q.dtype) @ v


def in_place(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(2, 3)
    scores *= torch.tensor(SIDE ** -0.5)
    scores += torch.linspace(0, 1, LENGTH)
    scores.masked_fill_(mask, torch.finfo(torch.float32).min)
    return F.dropout(torch.softmax(scores, -1), 0.3, training=False) @ v


def folded_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    q, k, v = (one.reshape(-1, LENGTH, SIDE) for one in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(ROWS, HEADS, LENGTH, LENGTH)
    scores = (scores + torch.zeros(mask.shape).masked_fill(mask, -1e30)).view(-1, LENGTH, LENGTH)
    return torch.bmm(nn.Softmax(dim=-1)(scores), v).view(ROWS, HEADS, LENGTH, SIDE)


def summed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    scores = torch.einsum("bqhd, bkhd -> bhqk", q, k)
    weights = torch.where(~mask, scores, -1e30).softmax(dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).transpose(1, 2)


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.tanh(q @ k.mT / 5) * 5, -1) @ v


def shown(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(q @ k.mT, -1)
    return (weights * 2) @ v


def small_fill(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax((q @ k.mT).masked_fill(mask, -1e4), -1) @ v  # not nothing beside every score


def over_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT, dim=-2) @ v


def patched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT
    scores[..., 0] = 0.0
    return torch.softmax(scores, -1) @ v


FUSED = (scaled_and_filled, infinite, added, in_place, folded_heads, summed)
LEFT = (capped, shown, small_fill, over_queries, patched)


class Attending(nn.Module):
    """Heads of one self-attention around `core(q, k, v, mask)`."""

    def __init__(self, core: Core, whole_rows: bool = False) -> None:
        super().__init__()
        self.core = core
        self.qkv, self.out = nn.Linear(HEADS * SIDE, 3 * HEADS * SIDE), nn.Linear(HEADS * SIDE, HEADS * SIDE)
        self.register_buffer("mask", hidden(whole_rows))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, HEADS, SIDE).permute(2, 0, 3, 1, 4)
        return self.out(self.core(q, k, v, self.mask).transpose(1, 2).reshape(x.shape))


def square(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def job_of(core: Core, whole_rows: bool = False) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(HEADS * SIDE, HEADS * SIDE), Attending(core, whole_rows), Attending(core, whole_rows))
    return Job(model, square, torch.randn(ROWS, LENGTH, HEADS * SIDE), torch.optim.SGD)


def result(job: Job, paths: tuple[str, ...], *others: Choice) -> dict[str, torch.Tensor]:
    """Loss and gradients of one step with the strategy on the paths."""
    undo = apply_choices(job, [*([Choice("attention", {"modules": list(paths)})] if paths else []), *others])
    found: dict[str, torch.Tensor] = {}

    def note() -> None:
        found.update({name: p.grad.clone() for name, p in job.model.named_parameters() if p.grad is not None})

    torch.manual_seed(1)
    found["loss"] = run_step(job, job.batch, on_gradients=note).loss
    undo()
    return found


def check_same(plain: dict[str, torch.Tensor], fused: dict[str, torch.Tensor]) -> None:
    """A gradient that is nothing against the whole is compared with the whole."""
    assert set(plain) == set(fused)
    whole = torch.stack([value.norm() for value in plain.values()]).norm()
    for name, value in plain.items():
        assert value.isfinite().all()
        size = value.norm() if value.norm() > 1e-6 * whole else whole
        assert (fused[name] - value).norm() <= 1e-5 * size, (name, value.norm() / whole)


def traced(job: Job, *choices: Choice) -> Trace:
    world = FakeWorld()
    fake = fake_job(job, world)
    apply_choices(fake, choices)
    trace_step(fake, world)
    return trace_step(fake, world)


def names(trace: Trace) -> set[str]:
    return {op.name for op in trace.ops}


@pytest.mark.parametrize("core", FUSED, ids=lambda core: core.__name__)
def test_attention_written_out_is_fused_and_the_same(core: Core) -> None:
    plain, fused = result(job_of(core), ()), result(job_of(core), ("1", "2"))
    check_same(plain, fused)
    found = written_attention(traced(job_of(core)))
    if core is not summed:  # einsum's products are found in the module that calls it, too
        assert found == ["1", "2"]
    fused_names = names(traced(job_of(core), Choice("attention", {"modules": ["1", "2"]})))
    assert "_softmax" not in fused_names
    assert KERNEL in fused_names


@pytest.mark.parametrize("core", [scaled_and_filled, added, folded_heads], ids=lambda core: core.__name__)
def test_rows_that_hide_everything_keep_their_bits(core: Core) -> None:
    """There the kernels' backward goes by a sum that they do not know well enough: off by the number of keys."""
    plain, watched = result(job_of(core, whole_rows=True), ()), result(job_of(core, whole_rows=True), ("1", "2"))
    for name, value in plain.items():
        assert torch.equal(watched[name], value), name


@pytest.mark.parametrize("core", LEFT, ids=lambda core: core.__name__)
def test_what_is_not_that_attention_keeps_its_bits(core: Core) -> None:
    plain, watched = result(job_of(core), ()), result(job_of(core), ("1", "2"))
    for name, value in plain.items():
        assert torch.equal(watched[name], value), name


def test_modules_whose_weights_are_read_are_not_offered() -> None:
    for core in (capped, shown):
        trace = traced(job_of(core))
        assert STRATEGY.choices(job_of(core), trace, CPU) == []
        assert "no attention is written out in '1'" in str(STRATEGY.absent({"modules": ["1"]}, trace))


def looking(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The weights are looked at after their product."""
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v + weights.sum(-1, keepdim=True).square() + weights.amax()


def test_weights_that_are_looked_at_are_there() -> None:
    plain, watched = result(job_of(looking), ()), result(job_of(looking), ("1", "2"))
    check_same(plain, watched)


def drawn_twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = F.dropout(torch.softmax(q @ k.mT, -1), 0.5)
    return weights @ v + weights.mean()


def changed_input(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    q = q * 1
    scores = q @ k.mT
    with torch.no_grad():
        q += 1
    return torch.softmax(scores, -1) @ v


@pytest.mark.parametrize("core", [drawn_twice, changed_input], ids=lambda core: core.__name__)
def test_what_would_be_wrong_is_refused(core: Core) -> None:
    with pytest.raises(RuntimeError, match="leave the module out"):
        result(job_of(core), ("1",))


def test_dropout_inside_the_kernel_drops_its_share() -> None:
    """The mean of many draws is the result without dropout, and the spread that of dropout."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 6, 8)

    def drop(rate: float) -> torch.Tensor:
        return F.dropout(torch.softmax(q @ k.mT, -1), rate) @ v

    class Once(nn.Module):
        def forward(self, rate: float, draws: int) -> torch.Tensor:
            return torch.stack([drop(rate) for _ in range(draws)])

    model = Once()
    job = Job(nn.ModuleDict({"once": model, "layer": nn.Linear(1, 1)}), square, q, torch.optim.SGD)
    plain = model(0.25, 4000)
    apply_choices(job, [Choice("attention", {"modules": ["once"]})])
    fused = model(0.25, 4000)
    assert not torch.equal(plain, fused)
    assert torch.allclose(plain.mean(0), fused.mean(0), atol=0.05)
    assert torch.allclose(plain.std(0), fused.std(0), rtol=0.1)


@pytest.mark.parametrize("average", [True, False])
def test_multi_head_attention_makes_no_weights_that_nobody_reads(average: bool) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: torch.Tensor, look: bool = False) -> torch.Tensor:
            out, weights = self.heads(x, x, x, average_attn_weights=average)
            return out + weights.sum() if look else out

    def block_job() -> Job:
        torch.manual_seed(0)
        return Job(Block(), square, torch.randn(3, 64, 16), torch.optim.SGD)

    job = block_job()
    trace = traced(job)
    assert STRATEGY.choices(job, trace, CPU) == [{"modules": ["heads"]}]
    check_same(result(block_job(), ()), result(block_job(), ("heads",)))
    choice = Choice("attention", {"modules": ["heads"]})
    assert "_softmax" not in names(traced(job, choice))
    looked = job.model(job.batch, look=True)
    apply_choices(job, [choice])
    assert torch.allclose(job.model(job.batch, look=True), looked, atol=1e-5)
    shown_weights = job.model.heads(job.batch, job.batch, job.batch, average_attn_weights=average)[1]
    assert isinstance(shown_weights, Lazy)
    assert shown_weights.shape == torch.Size([3, 64, 64] if average else [3, 2, 64, 64]) == (shown_weights + 0).shape


def hugging_face(kind: str, length: int, implementation: str = "eager") -> Job:
    torch.manual_seed(0)
    ids = torch.randint(0, 90, (2, length))
    if kind == "bert":
        model: Any = BertForSequenceClassification(BertConfig(
            vocab_size=90, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2,
            max_position_embeddings=length, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
            attn_implementation=implementation))
        batch = {"input_ids": ids, "labels": torch.tensor([0, 1]), "attention_mask": (ids > 9).long()}
    else:
        model = GPT2LMHeadModel(GPT2Config(
            vocab_size=90, n_embd=32, n_layer=2, n_head=2, n_positions=length, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            use_cache=False, bos_token_id=None, eos_token_id=None, attn_implementation=implementation))
        batch = {"input_ids": ids, "labels": ids}
    return Job(model.train(), own_loss, batch, torch.optim.AdamW)


def own_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch).loss


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_hugging_face_eager_attention_as_predicted(kind: str) -> None:
    job = hugging_face(kind, 160)
    settings = STRATEGY.choices(job, traced(job), CPU)[0]
    assert len(settings["modules"]) == 2
    choice = Choice("attention", settings)
    check_same(result(hugging_face(kind, 160), ()), result(job, tuple(settings["modules"])))
    run_step(job, job.batch)
    before, predicted = peak_of(traced(job))[0], peak_of(traced(job, choice))[0]
    apply_choices(job, [choice])
    measured = measure_step(job, lambda: run_step(job, job.batch))
    assert predicted == pytest.approx(measured, rel=0.02)
    assert predicted < 0.9 * before


def test_models_that_are_fused_already_say_so() -> None:
    assert "'sdpa'" in str(STRATEGY.excluded(hugging_face("bert", 32, "sdpa"), CPU))
    assert STRATEGY.excluded(hugging_face("bert", 32), CPU) is None


def test_the_planner_takes_it_where_sequences_are_long() -> None:
    others = {name: "to be quick" for name in strategies() if name not in ("attention", "micro-batches", "recompute")}
    made = make_plan(hugging_face("gpt2", 512), budget="60%", barred=others)
    assert made.fits and made.slowdown < 1
    assert "attention" in {one.name for one in made.strategies}


def test_with_other_strategies() -> None:
    def one_mask() -> Job:
        job = job_of(scaled_and_filled)
        for layer in job.model[1:]:
            layer.mask = layer.mask[1:2]
        return job

    plain = result(one_mask(), ())
    for other in (Choice("checkpoint", {"modules": ["1", "2"]}), Choice("micro-batches", {"count": 3}),
                  Choice("compress-activations"), Choice("recompute", {"tensors": [f"{KERNEL}:0"]})):
        check_same(plain, result(one_mask(), ("1", "2"), other))
    reduced = result(one_mask(), ("1", "2"), Choice("autocast", {"dtype": "bfloat16"}))
    assert float(reduced["loss"]) == pytest.approx(float(plain["loss"]), rel=0.02)
    with pytest.raises(UsageError, match="attention and compile cannot be combined"):
        apply_choices(one_mask(), [Choice("attention", {"modules": ["1"]}), Choice("compile", {"modules": ["1"]})])


def test_fidelity_pickling_and_evaluation() -> None:
    job = job_of(infinite)
    settings = {"modules": ["1", "2"]}
    assert STRATEGY.fidelity(job, settings) is Fidelity.REORDERED
    assert STRATEGY.fidelity(Job(nn.Sequential(nn.Dropout(0.1), nn.Linear(1, 1)), square, job.batch, torch.optim.SGD),
                             {"modules": ["0"]}) is Fidelity.RESAMPLED
    with torch.no_grad():
        plain = job.model(job.batch)
        apply_choices(job, [Choice("attention", settings)])
        for model in (job.model, copy.deepcopy(job.model), pickle.loads(pickle.dumps(job.model))):
            assert torch.allclose(model(job.batch), plain, atol=1e-6)
    with torch.inference_mode():
        assert torch.allclose(job.model(job.batch), plain, atol=1e-6)
    with pytest.raises(UsageError, match="no module 'nowhere'"):
        apply_choices(job, [Choice("attention", {"modules": ["nowhere"]})])
