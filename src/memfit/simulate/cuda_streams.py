"""Blocks that were freed while other streams still use them."""

from __future__ import annotations

from memfit.simulate.cuda_blocks import Block


class PendingEvents:
    """For each stream, the freed blocks that wait for it, in the order of their events."""

    def __init__(self) -> None:
        self.done: list[Block] = []
        self._waiting: dict[int, list[Block]] = {}

    def add(self, block: Block) -> None:
        """One event on each stream that was recorded for the block."""
        for stream in sorted(block.streams or ()):
            self._waiting.setdefault(stream, []).append(block)
            block.events += 1

    def complete(self, stream: int) -> None:
        """All events of `stream` have happened; blocks that wait for nothing else are `done`."""
        for block in self._waiting.pop(stream, ()):
            block.events -= 1
            if block.events == 0:
                self.done.append(block)

    def take_done(self) -> list[Block]:
        done, self.done = self.done, []
        return done

    def take_all(self) -> list[Block]:
        """Everything that waits, as after a synchronization of the device."""
        for stream in list(self._waiting):
            self.complete(stream)
        return self.take_done()
