"""Which rows of a route are in use. Pure; one a route.

A row is free once its SendRelease was given out: stages work in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from scheduler.actions import SendRelease


class Rows:
    """Hands out the lowest rows first and remembers which the stages have heard of."""

    def __init__(self, num_rows: int, *, epoch: int) -> None:
        """Begin with all rows 0 <= row < num_rows free."""
        self._epoch = epoch
        self._num_rows = num_rows
        self._free = list(range(num_rows))
        """A heap."""
        self._named: set[int] = set()
        """Taken, and part of an entry or a sample that was sent."""

    @property
    def num_free(self) -> int:
        """Rows that can be handed out now."""
        return len(self._free)

    @property
    def num_taken(self) -> int:
        """Rows in use."""
        return self._num_rows - len(self._free)

    def take(self, num_rows: int) -> list[int]:
        """Hand out rows, at most num_free."""
        return [heapq.heappop(self._free) for _ in range(num_rows)]

    def name(self, rows: Sequence[int]) -> None:
        """Note that the stages hear of rows."""
        self._named.update(rows)

    def give_back(self, rows: Sequence[int]) -> list[SendRelease]:
        """Take rows back; return what lets the stages forget those that they have heard of."""
        for row in rows:
            heapq.heappush(self._free, row)
        named = [row for row in rows if row in self._named]
        self._named.difference_update(named)
        return [SendRelease(epoch=self._epoch, row=row) for row in named]
