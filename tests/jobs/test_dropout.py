"""Dropout off: wherever the probability is kept, and as it was afterwards."""

from __future__ import annotations

import types

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from memfit.jobs.dropout import dropout_off, has_dropout


class Everywhere(nn.Module):
    """Module, recurrent layer, own attribute, configuration, fixed number, attention; recomputed as well."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.rnn = nn.Dropout(0.5), nn.LSTM(8, 8, 2, dropout=0.5, batch_first=True)
        self.attention_dropout = 0.5
        self.config = types.SimpleNamespace(attn_pdrop=0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.rnn(self.drop(x))
        x = F.dropout(x, self.attention_dropout, self.training)
        x = checkpoint(lambda y: F.dropout(y, 0.3) * 2, x, use_reentrant=False)
        return F.scaled_dot_product_attention(x, x, x, dropout_p=self.config.attn_pdrop)


def test_two_passes_are_equal_inside_and_differ_outside() -> None:
    model, x = Everywhere().train(), torch.randn(2, 5, 8)
    assert has_dropout(model)
    assert not torch.equal(model(x), model(x))
    with dropout_off(model):
        assert not has_dropout(model)
        first = model(x)
        first.sum().backward()
        assert torch.equal(first, model(x))
    assert (model.drop.p, model.rnn.dropout, model.attention_dropout, model.config.attn_pdrop) == (0.5,) * 4
    assert not torch.equal(model(x), model(x))
