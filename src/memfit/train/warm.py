"""Making a process warm: everything that is made once is made before a limit is set above the process."""

from __future__ import annotations

from contextlib import suppress

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from memfit.monitor.measure import measure_peak


def warm_up() -> None:
    """Run a tiny network with the usual operators, forward and backward, under the usual optimizers, so that thread
    pools, kernels' code, lazily imported parts of torch, and the profiler are there. Random generators are kept."""
    with torch.random.fork_rng(devices=[]):
        model = _Tiny()
        for optimizer in (torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.parameters(), momentum=0.9)):
            _step(model, optimizer)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _step(model, optimizer)
        with suppress(Exception):  # a profiler that does not start is told of when it is needed
            measure_peak(lambda: _step(model, optimizer), [])
        F.embedding_bag(torch.randint(0, 16, (8, 4)), model.embed.weight)  # its code grows in place
        _fill_thread_pools()


class _Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                                  nn.MaxPool2d(2))
        self.norm = nn.LayerNorm(8)
        self.embed = nn.Embedding(16, 8)
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
        self.head = nn.Linear(8, 16)

    def forward(self, images: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        x = self.conv(images).flatten(2).transpose(1, 2)  # (B, 64, 8)
        x = self.norm(x) + self.embed(ids)
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        x = x + checkpoint(self.inner, x, use_reentrant=False)
        return self.head(x)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    images, ids = torch.randn(8, 3, 16, 16), torch.randint(0, 16, (8, 64))
    loss = F.cross_entropy(model(images, ids).flatten(0, 1), ids.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def _fill_thread_pools() -> None:
    """Large enough for every thread of the pools of torch, of the matrix library and of the convolutions."""
    wide = torch.randn(512, 512)
    for dtype in (torch.float32, torch.bfloat16):
        x = wide.to(dtype).requires_grad_()
        (x @ x).tanh().sum().backward()
        images = torch.randn(4, 16, 64, 64).to(dtype).requires_grad_()
        F.conv2d(images, torch.randn(16, 16, 3, 3).to(dtype).requires_grad_()).sum().backward()
