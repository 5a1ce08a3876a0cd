"""Leaves of the prefix tree in the order in which they are evicted. Pure.

Whether a page may still go, and when, is asked when its turn comes: a page that was used since, is
held or has pages below again costs one look, not an update for every use.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TypeAlias

from chunkmesh.indexed_page import IndexedPage
from chunkmesh.remains import Container

Key: TypeAlias = tuple[int, ...]
Order: TypeAlias = Callable[[IndexedPage], Key]
"""The page with the least key goes first; the key of a page never falls."""
_MIN_ENTRIES = 1024


def least_recently_used(page: IndexedPage) -> Key:
    """Order pages by their last use."""
    return (page.last_used,)


class LeafQueue:
    """Owner of the order; holds every page that may go, once, and others."""

    def __init__(self, order: Order, may_go: Callable[[IndexedPage], bool]) -> None:
        """Take what orders pages, and what tells whether a page may go now."""
        self._order = order
        self._may_go = may_go
        self._heap: list[tuple[Key, int, IndexedPage]] = []
        self._queued: set[IndexedPage] = set()
        self._serial = 0
        self._sweep_at = _MIN_ENTRIES

    def __contains__(self, page: IndexedPage) -> bool:
        return page in self._queued

    def pages(self) -> Iterator[IndexedPage]:
        """Walk through what is queued now; pages may come and go between two steps."""
        return (page for _, _, page in tuple(self._heap))

    def push(self, page: IndexedPage) -> None:
        """Add a page if it may go."""
        if page not in self._queued and self._may_go(page):
            if len(self._heap) >= self._sweep_at:
                self._sweep()
            self._queued.add(page)
            self._serial += 1
            heapq.heappush(self._heap, (self._order(page), self._serial, page))

    def pop(self, *, before: Key | None = None) -> IndexedPage | None:
        """Take the first page that may go; None if there is none, or none with a lesser key."""
        while self._heap and (before is None or self._heap[0][0] < before):
            queued_key, _, page = heapq.heappop(self._heap)
            self._queued.remove(page)
            if self._may_go(page):
                if self._order(page) == queued_key:
                    return page
                self.push(page)
        return None

    def clear(self) -> list[Container]:
        """Forget all pages; return what held them, which is the caller's now."""
        held: list[Container] = [self._heap, self._queued]
        self._heap, self._queued = [], set()
        self._sweep_at = _MIN_ENTRIES
        return held

    def _sweep(self) -> None:
        """Drop what may not go, so that removed pages do not pile up."""
        self._heap = [entry for entry in self._heap if self._may_go(entry[2])]
        heapq.heapify(self._heap)
        self._queued = {page for _, _, page in self._heap}
        self._sweep_at = max(_MIN_ENTRIES, 2 * len(self._heap))
