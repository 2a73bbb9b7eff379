"""Values on fake tensors: kept where they decide shapes and branches, a stated policy elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from memfit.trace import FakeWorld


@pytest.fixture(autouse=True)
def world() -> Iterator[FakeWorld]:
    made = FakeWorld()
    with made.building():
        yield made


def test_integers_are_computed() -> None:
    lengths = torch.tensor([3, 1, 2])
    mask = torch.arange(4)[None, :] < lengths[:, None]
    assert mask.sum().item() == 6
    assert mask.nonzero().shape == (6, 2)
    assert torch.randn(3, 4, 5)[mask].shape == (6, 5)
    assert torch.randn(3, 4).masked_select(mask).shape == (6,)
    assert lengths.repeat_interleave(lengths).tolist() == [3, 3, 3, 1, 2, 2]


def test_a_write_is_seen_by_every_view() -> None:
    counts = torch.zeros(4, dtype=torch.long)
    row = counts.view(2, 2)[1]
    counts[3] = 7
    row.add_(1)
    assert counts.tolist() == [0, 0, 1, 8]
    assert row.sum().item() == 9


def test_a_write_of_something_unknown_forgets() -> None:
    flags = torch.ones(3, dtype=torch.bool)
    view = flags[1:]
    assert flags.all().item() and view.all().item()
    flags.copy_(torch.rand(3) > 0.5)
    with pytest.raises(Exception, match="nonzero"):
        view.nonzero()


def test_what_is_drawn_never_skips_a_layer_nor_an_optimizer_step() -> None:
    assert not (torch.rand([]) < 0.1).item()  # layer drop
    assert not torch.randn(4).isnan().any().item()  # an overflow
    assert torch.randn(4).isfinite().all().item()
    assert torch.randn([]).item() == 1.0


def test_real_tensors_are_read_and_never_written(world: FakeWorld) -> None:
    real = torch.utils._python_dispatch._disable_current_modes
    with real():
        counter = torch.tensor([5])
    fake = world.tensor(counter)
    fake.add_(1)
    assert fake.item() == 6
    with real():
        assert counter.item() == 5


def test_schedules_have_values() -> None:
    rates = [rate.item() for rate in torch.linspace(0, 0.3, 4)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3])
