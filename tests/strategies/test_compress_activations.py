"""What autograd saves in fewer bytes: the same bits where that is claimed, bounded errors elsewhere, peaks as predicted."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from memfit.apply import apply_choices, strategy
from memfit.core.errors import UsageError
from memfit.core.fidelity import Fidelity
from memfit.core.strategy import Choice
from memfit.jobs import Job, run_step
from memfit.monitor.measure import measure_step
from memfit.strategies.exact.compress_activations import codecs, forward, saved
from memfit.strategies.exact.compress_activations.needs import Gate
from memfit.trace import FakeWorld, fake_job, trace_step
from memfit.trace.usage import usage
from memfit.train.checkpoints import Place, load_checkpoint, save_checkpoint

NAME = "compress-activations"


def images() -> Job:
    """ReLU before pooling, LeakyReLU after BatchNorm, ReLU6 in place, dropout, positions of a pooling layer."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64),
        nn.LeakyReLU(0.1), nn.Conv2d(64, 32, 1), nn.ReLU6(inplace=True), nn.Dropout(0.3), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    return Job(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), (torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))),
               lambda ps: torch.optim.AdamW(ps, 1e-3))


def attention() -> Job:
    """Attention with dropout, layer normalisation, ReLU and GELU between Linear layers."""
    layers = [nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, activation=name) for name in ("relu", "gelu")]
    model = nn.Sequential(nn.Embedding(50, 32), *layers, nn.Linear(32, 50))
    ids = torch.randint(0, 50, (8, 24))
    return Job(model, lambda m, b: F.cross_entropy(m(b).flatten(0, 1), b.flatten()), ids,
               lambda ps: torch.optim.AdamW(ps, 1e-3))


class Odd(nn.Module):
    """Indices, masks and views of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(60, 32), nn.Linear(32, 60)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.embed(ids + 0))
        values, places = x.topk(16, dim=-1)
        x = F.pad(torch.gather(x, -1, places) * values, (0, 16)) * (torch.rand(x.shape) > 0.1)
        x = x.masked_fill(torch.rand(x.shape) > 0.9, 0.5)
        x = x.max(-1, keepdim=True)[0] * torch.tanh(x) + torch.where(x > 0.2, x, x * 0.5)
        x = x + x[:, torch.randperm(x.shape[1]).repeat(2)[: x.shape[1]]] * (torch.rand(x.shape) > 0.5).to(x.dtype)
        one, two = x.chunk(2, -1)
        return self.head(torch.cat([F.hardtanh(one) * two, torch.sigmoid(two)], -1))


def odd() -> Job:
    ids = torch.randint(0, 60, (8, 24))
    return Job(Odd(), lambda m, b: F.cross_entropy(m(b).flatten(0, 1), b.flatten()), ids,
               lambda ps: torch.optim.SGD(ps, 1e-2))


JOBS: dict[str, Callable[[], Job]] = {"images": images, "attention": attention, "odd": odd}


def job_of(name: str, settings: dict[str, Any] | None, count: int = 1) -> Job:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        job = JOBS[name]()
    if settings is not None:
        apply_choices(job, [Choice(NAME, settings)])
    job.rules.micro_batches = count
    return job


def steps_of(job: Job, count: int = 2) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Losses, and the last step's gradients."""
    gradients: list[torch.Tensor] = []
    torch.manual_seed(1)
    losses = [run_step(job, job.batch).loss for _ in range(count - 1)]
    losses.append(run_step(job, job.batch, on_gradients=lambda: gradients.extend(
        p.grad.clone() for p in job.model.parameters())).loss)
    return losses, gradients


def peaks(name: str, settings: dict[str, Any] | None, count: int = 1) -> tuple[int, int]:
    """Predicted and measured."""
    world, job = FakeWorld(), job_of(name, None, count)
    fake = fake_job(job, world)
    fake.rules.micro_batches = count
    for one in (fake, job):
        apply_choices(one, [] if settings is None else [Choice(NAME, settings)])
    trace_step(fake, world)
    run_step(job, job.batch)
    return usage(trace_step(fake, world)).peak_bytes, measure_step(job, lambda: run_step(job, job.batch))


@pytest.mark.parametrize("name", JOBS)
def test_exactly_the_same_bits_in_fewer_bytes_as_predicted(name: str) -> None:
    plain, job = job_of(name, None), job_of(name, {})
    for one, other in zip(steps_of(plain), steps_of(job), strict=True):
        assert all(map(torch.equal, one, other))
    for one, other in zip(plain.model.state_dict().values(), job.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert strategy(NAME).fidelity(job, {}) is Fidelity.BITWISE
    predicted, measured = peaks(name, {})
    assert abs(measured - predicted) <= 0.02 * measured
    assert predicted < 0.97 * peaks(name, None)[0]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", JOBS)
def test_fewer_bits_lose_little_and_are_predicted(name: str, bits: int) -> None:
    (losses, plain), (reduced, other) = (steps_of(job_of(name, one), 1) for one in (None, {"bits": bits}))
    assert torch.equal(losses[0], reduced[0])  # forward is not touched
    whole = torch.stack([g.norm() for g in plain]).norm()
    off = torch.stack([(one - two).norm() for one, two in zip(plain, other, strict=True)]).norm() / whole
    assert 0 < off < {8: 0.01, 4: 0.12}[bits]
    predicted, measured = peaks(name, {"bits": bits})
    assert abs(measured - predicted) <= 0.02 * measured
    assert predicted < peaks(name, {})[0] or name == "images"  # a convolution needs as much
    assert strategy(NAME).fidelity(job_of(name, None), {"bits": bits}) is Fidelity.REDUCED


def test_windows_are_predicted() -> None:
    predicted, measured = peaks("attention", {}, count=4)
    assert abs(measured - predicted) <= 0.02 * measured


@pytest.mark.parametrize("count", [8, 4099, (1 << 17) + 1001])
def test_bits_come_back(count: int) -> None:
    x = torch.randn(count, generator=torch.Generator().manual_seed(0))
    bits = codecs.pack_bits(x, lambda part: part > 0)
    assert bits.numel() == -(-count // 8)
    assert torch.equal(codecs.unpack_bits(bits, count, torch.bool), x > 0)
    assert torch.equal(codecs.unpack_bits(bits, count, torch.float32, 3.0, -1.0), torch.where(x > 0, 3.0, -1.0))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_come_back_within_half_a_step(bits: int, dtype: torch.dtype) -> None:
    block, count = codecs.BLOCKS[bits], (1 << 17) + 1001
    x = (torch.randn(count, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 4, count)).to(dtype)
    x[:block] = 7.0
    codes, least, step = codecs.pack_blocks(x, bits)
    back = codecs.unpack_blocks(codes, least, step, bits, count, dtype)
    rows = F.pad(x.float(), (0, -count % block)).view(-1, block)
    half = (rows.amax(1) - rows.amin(1)) / (2**bits - 1) / 2
    allowed = half * 1.001 + rows.abs().amax(1) * (2**-8 if dtype is torch.bfloat16 else 2**-22)
    assert ((back.float() - x.float()).abs() <= allowed.repeat_interleave(block)[:count]).all()
    assert torch.equal(back[:block], x[:block])
    assert codes.nbytes + least.nbytes + step.nbytes <= count * (bits / 8 + 8 / block) + 2 * block


@pytest.mark.parametrize(("low", "high", "dtype"), [
    (0, 255, torch.uint8), (-100, 27, torch.int8), (0, 256, torch.int16), (-1, 40_000, torch.int32), (0, 1 << 31, None)])
def test_the_smallest_integers_that_hold_a_range(low: int, high: int, dtype: torch.dtype | None) -> None:
    assert codecs.narrowest(low, high) is dtype


@pytest.mark.parametrize("function", [
    F.relu, F.leaky_relu, lambda x: F.hardtanh(x, 0.0, 6.0), lambda x: F.hardtanh(x), lambda x: F.relu_(x * 1),
    lambda x: F.leaky_relu_(x * 1, 0.2), lambda x: F.hardtanh_(x * 1, -2.0, 0.5), lambda x: F.max_pool1d(F.relu(x), 2),
    lambda x: F.hardtanh(x, 0.0, 1e38)])
def test_what_is_not_a_number_takes_the_same_side(function: Any) -> None:
    special = torch.tensor([0.0, -0.0, torch.nan, torch.inf, -torch.inf, 6.0, 1.0, -1.0, 1e-45, -2.0, 0.5])
    found = []
    for compress in (False, True):
        x = torch.cat([special, torch.randn(5000, generator=torch.Generator().manual_seed(0))]).view(1, -1).requires_grad_()
        with forward.compressing() if compress else torch.enable_grad():
            y = function(x * 1.0)
            total = (y * torch.arange(1.0, y.numel() + 1)).sum()
        total.backward()
        found.append(x.grad)
    assert torch.equal(*(grad.view(torch.int32) for grad in found))


def handles(
    run: Callable[[], torch.Tensor], bits: int | None = None
) -> tuple[torch.Tensor, list[saved.Handle], list[torch.Tensor]]:
    """The loss of a forward, what was packed, and what was left as it is."""
    packed: list[saved.Handle] = []
    left: list[torch.Tensor] = []
    ledger = forward.Ledger(bits)

    def pack(tensor: torch.Tensor) -> Any:
        kept = ledger.save(tensor)
        (packed if isinstance(kept, saved.Handle) else left).append(kept)
        return kept

    with torch.autograd.graph.saved_tensors_hooks(pack, forward._unpack), forward.Watching(ledger):
        loss = run()
    with torch.no_grad():
        ledger.close()
    return loss, packed, left


def test_parameters_the_batch_and_what_is_kept_anyway_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64))
    x = torch.randn(64, 64, requires_grad=True)
    _, packed, left = handles(lambda: model(x).sum())
    weights = {p.untyped_storage()._cdata for p in (*model.parameters(), x)}
    assert {t.untyped_storage()._cdata for t in left} <= weights and len(left) == 4  # the input, transposed weights
    needs = [handle.need for handle in packed]
    gates = [handle for handle in packed if isinstance(handle.need, Gate)]
    assert len(needs) == 5 and len(gates) == 2
    assert gates[0].saved.held is not None  # the next Linear keeps the ReLU's result: a mask would come on top
    assert gates[1].saved.held is None  # dropout does not


def test_copies_of_parameters_keep_their_precision() -> None:
    layer, x = nn.Linear(64, 64), torch.randn(64, 64)

    def run() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(layer(x)).sum()

    _, packed, _ = handles(run, bits=8)
    assert [handle.saved.held is None for handle in packed].count(True) == 1  # what the second call takes in
    assert len({id(handle.saved) for handle in packed}) >= 2


class Squared(torch.autograd.Function):
    """A function of the user's own: nobody knows what it needs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * x
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        x, y = ctx.saved_tensors
        return grad * 2 * y / x


@pytest.mark.parametrize("after", [lambda x: F.max_pool2d(x, 2), lambda x: F.leaky_relu(x), lambda x: F.relu(x)])
def test_what_a_users_own_function_saves_stays_as_it_is(after: Any) -> None:
    found = []
    for bits in (None, 4):
        x = torch.randn(2, 4, 32, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()

        def run(x: torch.Tensor = x) -> torch.Tensor:
            y = x * 2
            return after(Squared.apply(y)).sum() + after(y).sum()

        loss = handles(run, bits)[0] if bits else run()
        loss.backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_a_storage_is_packed_once_and_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"pack_blocks": 0, "unpack_blocks": 0}
    for name in counts:
        inner = getattr(saved, name)

        def counted(*args: Any, name: str = name, inner: Any = inner) -> Any:
            counts[name] += 1
            return inner(*args)

        monkeypatch.setattr(saved, name, counted)
    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
    x = torch.randn(64, 64, requires_grad=True)

    def run() -> torch.Tensor:
        y = torch.tanh(x)
        return sum(layer(y) for layer in layers).sum()  # one storage, saved by four

    loss, packed, _ = handles(run, bits=8)
    assert len({id(handle.saved) for handle in packed}) == 1
    loss.backward(retain_graph=True)
    assert counts == {"pack_blocks": 1, "unpack_blocks": 1}
    again = x.grad.clone()
    x.grad = None
    loss.backward()
    assert torch.equal(x.grad, again)


def test_nothing_outlives_the_graph() -> None:
    job = job_of("attention", {"bits": 8})
    gc.collect()
    gc.disable()
    try:
        run_step(job, job.batch)
        assert not [one for one in gc.get_objects() if type(one) in (saved.Saved, saved.Handle)]
    finally:
        gc.enable()


def test_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path) -> None:
    choices = [Choice(NAME, {"bits": 4})]
    first, second = job_of("images", {"bits": 4}), job_of("images", {"bits": 4})
    steps_of(first, 2)
    written = save_checkpoint(tmp_path, first, Place(2), choices)
    expected = [run_step(first, first.batch).loss for _ in range(2)]
    load_checkpoint(written, second, choices)
    assert [run_step(second, second.batch).loss for _ in range(2)] == expected


@pytest.mark.parametrize("bits", [3, True, "8", 16])
def test_other_numbers_of_bits_are_refused(bits: Any) -> None:
    with pytest.raises(UsageError, match="bits is"):
        apply_choices(job_of("odd", None), [Choice(NAME, {"bits": bits})])
