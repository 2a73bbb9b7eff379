"""Batches of an epoch, and evaluation on what is held out: both made one batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

Batch = dict[str, torch.Tensor]
HELD_OUT_SHARE = 5
"""One example in this many is held out."""


class Examples(Protocol):
    """Examples that are made when asked for."""

    def __len__(self) -> int: ...

    def batch(self, indices: np.ndarray, draws: np.random.Generator) -> Batch:
        """The examples at `indices` (int64, shape [n]) as one batch; random parts of it come from `draws`."""
        ...


class Sampler:
    """Shuffled batches of one size: `sampler(epoch)` gives the epoch's, the same each time it is asked.

    The examples are split once, in the same way for every seed: one in five is held out. Where an epoch has fewer
    examples than a batch, it is one batch with repeated ones; a rest smaller than a batch is dropped.
    """

    def __init__(self, examples: Examples, batch_size: int, seed: int) -> None:
        order = np.random.default_rng(0).permutation(len(examples))
        kept = max(1, len(order) - len(order) // HELD_OUT_SHARE)
        self._examples = examples
        self._batch_size = batch_size
        self._seed = seed
        self._train = order[:kept]
        self.held_out = order[kept:] if kept < len(order) else order

    def __call__(self, epoch: int) -> Iterator[Batch]:
        draws = np.random.default_rng((self._seed, epoch))
        order = draws.permutation(self._train)
        if len(order) < self._batch_size:
            order = np.resize(order, self._batch_size)
        for start in range(0, len(order) - self._batch_size + 1, self._batch_size):
            yield self._examples.batch(order[start:start + self._batch_size], draws)

    def first(self) -> Batch:
        """The first batch of the first epoch."""
        return next(self(0))

    def held_out_batches(self, most: int) -> Iterator[Batch]:
        """Up to `most` held-out examples, in batches of an eighth of the training batch: evaluation must fit too."""
        size = max(1, min(32, self._batch_size // 8))
        chosen, draws = self.held_out[:most], np.random.default_rng(1)
        for start in range(0, len(chosen), size):
            yield self._examples.batch(chosen[start:start + size], draws)


class Evaluation:
    """`evaluation(model)`: means over held-out batches without a graph, in evaluation mode, put back afterwards.

    `measure(model, batch)` gives `(count, {name: mean over what is counted})` for one batch; with `perplexity`, the
    exponential of the mean loss is added.
    """

    def __init__(
        self,
        sampler: Sampler,
        measure: Callable[[nn.Module, Batch], tuple[float, Mapping[str, float]]],
        most: int,
        perplexity: bool = False,
    ) -> None:
        self._sampler = sampler
        self._measure = measure
        self._most = most
        self._perplexity = perplexity

    def __call__(self, model: nn.Module) -> dict[str, float]:
        modes = {module: module.training for module in model.modules()}
        model.eval()
        try:
            with torch.no_grad():
                means = self._means(model)
        finally:
            for module, training in modes.items():
                module.training = training
        if self._perplexity:
            means["perplexity"] = float(np.exp(min(means["loss"], 700.0)))
        return means

    def _means(self, model: nn.Module) -> dict[str, float]:
        place = next((p.device for p in model.parameters()), torch.device("cpu"))
        sums: dict[str, float] = {}
        total = 0.0
        for batch in self._sampler.held_out_batches(self._most):
            count, means = self._measure(model, {key: tensor.to(place) for key, tensor in batch.items()})
            total += count
            for name, value in means.items():
                sums[name] = sums.get(name, 0.0) + value * count if count else sums.get(name, 0.0)
        return {name: value / max(total, 1.0) for name, value in sums.items()}


def accuracy(logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, Mapping[str, Any]]:
    """`(labels counted, {"accuracy", "loss"})` of logits [..., classes] against labels [...] that are not -100."""
    logits, labels = logits.flatten(0, -2), labels.flatten()
    counted = int((labels != -100).sum())
    if counted == 0:
        return 0.0, {}
    right = ((logits.argmax(-1) == labels) & (labels != -100)).sum()
    loss = nn.functional.cross_entropy(logits, labels, ignore_index=-100)
    return float(counted), {"accuracy": float(right) / counted, "loss": float(loss)}
