"""Copies to slots and back: at once on the CPU, beside the kernels on a card.

On a card one stream of its own does all copies, so that whatever touches a slot is in order. Known mistakes that this avoids:
memory that is freed before its copy has ended (pytorch/torchtune#1936), a stream kept from another device or thread
(huggingface/trl#7195), and a stash that nothing bounds (huggingface/trl#5700).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from memfit.jobs.away import on_card

IN_FLIGHT = 2  # tensors that are on their way, in each direction


class Copies:
    """One forward's and its backward's. What is on its way out stays alive until it has arrived, or `IN_FLIGHT` more are on
    their way; fakes that stand for a card's tensors do so, too."""

    def __init__(self) -> None:
        self._leaving: deque[tuple[torch.Tensor, Any]] = deque()
        self._streams: dict[torch.device, Any] = {}

    def out(self, source: torch.Tensor, slot: torch.Tensor) -> None:
        """Copy `source` (any dtype, one dimension) into the beginning of the slot's bytes."""
        target = slot[: source.nbytes].view(source.dtype)
        if not source.is_cuda:
            target.copy_(source)
            event = None
        else:
            side, current = self._side(source.device), torch.cuda.current_stream(source.device)
            side.wait_stream(current)  # what computes it has been launched there
            with torch.cuda.stream(side):
                target.copy_(source, non_blocking=True)
                event = side.record_event()
        if on_card(source):
            self._leaving.append((source, event))
            self._let_go(IN_FLIGHT)

    def back(self, slot: torch.Tensor, count: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, Any]:
        """The slot's values on the device, and what to wait for before they are used (None: nothing)."""
        made = slot.new_empty((count,), dtype=dtype, device=device)
        source = slot[: made.nbytes].view(dtype)
        if not made.is_cuda:
            made.copy_(source)
            return made, None
        side = self._side(device)
        side.wait_stream(torch.cuda.current_stream(device))  # kernels there may still read what this memory held before
        with torch.cuda.stream(side):
            made.copy_(source, non_blocking=True)
            event = side.record_event()
        made.record_stream(side)  # it may be dropped unused while the copy is under way
        return made, event

    def arrived(self) -> None:
        """The forward is over: nothing need be kept any longer than its copy takes."""
        self._let_go(0)

    def _let_go(self, most: int) -> None:
        while len(self._leaving) > most:
            source, event = self._leaving.popleft()
            if event is not None:  # its memory is used again by this stream, which waits for the copy
                torch.cuda.current_stream(source.device).wait_event(event)

    def _side(self, device: torch.device) -> Any:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


def wait_for(event: Any, device: torch.device) -> None:
    """Let the stream that is current now wait for a copy."""
    if event is not None:
        torch.cuda.current_stream(device).wait_event(event)
