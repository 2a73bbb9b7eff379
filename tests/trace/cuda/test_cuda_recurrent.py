"""Recurrent layers on a card: one call of cuDNN, its reserve, and gradients in one buffer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from memfit.core.trace import Op, Trace
from memfit.hardware import find_device
from memfit.jobs import Job
from memfit.simulate import simulate
from memfit.trace import trace_job
from memfit.trace.cuda import recurrent, target_of
from memfit.trace.cuda.recurrent_sizes import Layers, reserve_bytes, workspace

CARD = find_device("rtx3060")
LSTM, GRU = 2, 3
PRINTED = [  # layers, hidden side, directions, time steps times samples, reserve: pytorch#2895 (twice), deepspeech.pytorch#172
    (LSTM, 4, 320, 1, 25_000, 736_000_000), (GRU, 4, 320, 1, 25_000, 864_000_000), (GRU, 1, 800, 2, 326 * 64, 801_177_600)]


def layers(mode: int, count: int, hidden: int, directions: int, rows: int, **changed: int) -> Layers:
    plain = Layers(mode=mode, rows=rows, batch=64, hidden=hidden, projected=hidden, count=count, directions=directions,
                   itemsize=4, train=True, dropout=0.0, weight_bytes=0)
    return replace(plain, **changed)


@pytest.mark.parametrize(("mode", "count", "hidden", "directions", "rows", "printed"), PRINTED)
def test_reserve_is_what_maintainers_printed(mode: int, count: int, hidden: int, directions: int, rows: int,
                                             printed: int) -> None:
    assert reserve_bytes(layers(mode, count, hidden, directions, rows)) == printed
    assert reserve_bytes(layers(mode, count, hidden, directions, rows, train=False)) == 0
    assert reserve_bytes(layers(mode, count, hidden, directions, rows, itemsize=2)) == printed // 2


@pytest.mark.parametrize(("mode", "gates", "printed"), [(LSTM, 4, 17_700_000), (GRU, 3, 13_200_000)])
def test_workspace_contains_what_was_printed(mode: int, gates: int, printed: int) -> None:
    weights = 4 * (gates * 320 * (123 + 320 + 2) + 3 * gates * 320 * (320 + 320 + 2))
    low, typical, high = workspace(layers(mode, 4, 320, 1, 25_000, weight_bytes=weights))
    assert low < printed < high and abs(typical - printed) < 0.05 * printed


class Net(nn.Module):
    def __init__(self, kind: str, count: int, both: bool, batch_first: bool, cast: bool = False, packed: bool = False) -> None:
        super().__init__()
        self.layers = getattr(nn, kind)(24, 32, count, bidirectional=both, batch_first=batch_first)
        self.head = nn.Linear(64 if both else 32, 5)
        self.cast, self.packed = cast, packed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.cast):
            if self.packed:
                given = PackedSequence(x.reshape(-1, x.shape[-1]), torch.full((x.shape[0],), x.shape[1]))
                return self.head(self.layers(given)[0].data)
            return self.head(self.layers(x)[0])


def step(kind: str, count: int = 2, both: bool = False, batch_first: bool = False, **options: bool) -> Trace:
    job = Job(lambda: Net(kind, count, both, batch_first, **options), lambda model, x: model(x).float().square().mean(),
              torch.empty(6, 10, 24), lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    return trace_job(job, CARD).steady


def calls(trace: Trace) -> list[Op]:
    return [op for op in trace.ops if "rnn" in op.name]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("both", "batch_first"), [(False, False), (True, True)])
def test_a_layer_is_one_operator_each_way(kind: str, both: bool, batch_first: bool) -> None:
    trace = step(kind, 2, both, batch_first)
    forward, backward = calls(trace)
    assert (forward.name, forward.phase) == ("_cudnn_rnn", "forward")
    assert (backward.name, backward.phase) == ("_cudnn_rnn_backward", "backward")
    assert not any("mkldnn" in op.name or op.name in ("sigmoid", "tanh") for op in trace.ops)
    reserve = [trace.storages[index].nbytes for index in forward.writes if trace.storages[index].dtype == "uint8"]
    mode = {"LSTM": 2, "GRU": 3, "RNN": 1}[kind]
    assert reserve == [reserve_bytes(layers(mode, 2, 32, 2 if both else 1, 60))]
    output = next(trace.storages[index] for index in forward.writes)
    assert output.nbytes == 6 * 10 * 32 * (2 if both else 1) * 4
    assert (forward.workspace or (0,))[0] >= (6 * 10 * 24 * 4 if batch_first else 0)  # the input in order of time


def test_gradients_of_the_weights_are_one_buffer() -> None:
    trace = step("LSTM", 2)
    weights = sum(p.numel() for p in nn.LSTM(24, 32, 2).parameters()) * 4
    backward = calls(trace)[-1]
    buffers = {index for index in backward.writes if trace.storages[index].category == "gradients"}
    assert [trace.storages[index].nbytes for index in buffers] == [weights]


def test_under_autocast_it_runs_in_half_whatever_the_type() -> None:
    trace = step("LSTM", 2, cast=True)
    forward = calls(trace)[0]
    floats = {trace.storages[index].dtype for index in forward.writes} - {"uint8"}
    assert floats == {"float16"}
    weights = [s for s in trace.storages if s.dtype == "float16" and s.op == "zeros"]
    assert max(s.nbytes for s in weights) == sum(p.numel() for p in nn.LSTM(24, 32, 2).parameters()) * 2


def test_types_and_flags_that_cudnn_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(CARD)
    assert target is not None
    x = torch.empty(2, 2, dtype=torch.bfloat16, device="meta")
    assert recurrent._acceptable(x, replace(target, torch_version=(2, 14)))
    assert not recurrent._acceptable(x, replace(target, torch_version=(2, 6)))
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    assert not calls(step("GRU", 1))


def test_packed_sequences_and_a_card() -> None:
    trace = step("GRU", 1, packed=True)
    forward, _ = calls(trace)
    assert [trace.storages[i].nbytes for i in forward.writes if trace.storages[i].dtype == "uint8"] == [60 * 32 * 6 * 4]
    peak = simulate(trace, CARD).peak
    assert 0 < peak.allocated_low_bytes <= peak.allocated_bytes <= peak.allocated_high_bytes < peak.process_bytes


def test_the_users_own_layers_are_as_before() -> None:
    layer, x = nn.LSTM(4, 4), torch.randn(3, 2, 4)
    before = layer(x)[0]
    step("LSTM", 1)
    assert torch.equal(layer(x)[0], before)
    layer(x)[0].sum().backward()


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("packed", [False, True])
def test_operations_are_two_for_each_weight_and_row_and_twice_that_backward(kind: str, gates: int, packed: bool) -> None:
    forward, backward = calls(step(kind, packed=packed))
    weights = gates * 32 * (24 + 32) + gates * 32 * (32 + 32)
    assert forward.flops == 2 * 6 * 10 * weights and backward.flops == 2 * forward.flops
