"""How fast tensors are read and written, by how long ago they were last used: what the caches are worth."""

from __future__ import annotations

import time

import torch

from memfit.core.units import MIB

_CHUNK = MIB  # numbers in a tensor: 4 MiB
_POOLS_MIB = (12, 24, 36, 48, 72, 96, 144, 240)
_ROUNDS = 3


def reuse_rates() -> list[list[float]]:
    """`[reuse distance in bytes, bytes per second]`: triples of tensors are added in turn, round and round, so that each
    is met again after as many bytes as the pool has."""
    chunks = 3 * max(1, _POOLS_MIB[-1] * MIB // (3 * 4 * _CHUNK))
    pool = [torch.full((_CHUNK,), 0.5) for _ in range(chunks)]
    found = []
    for size in _POOLS_MIB:
        used = pool[: 3 * max(1, size * MIB // (3 * 4 * _CHUNK))]
        nbytes = sum(tensor.nbytes for tensor in used)
        found.append([float(nbytes), nbytes / min(_round(used) for _ in range(_ROUNDS + 1))])
    return found


def _round(tensors: list[torch.Tensor]) -> float:
    began = time.thread_time()
    for place in range(0, len(tensors), 3):
        torch.add(tensors[place], tensors[place + 1], out=tensors[place + 2])
    return max(time.thread_time() - began, 1e-9)
