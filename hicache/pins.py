"""Pins: pages that an admin wants kept, by digest, whether they are there or not. Pure.

A pin outlives its page: a page that was found damaged is kept again as soon as it is stored anew,
and after a restart pins are known before pages are. Time enters as now_s.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable


class Pins:
    """Owner of all pins."""

    def __init__(self) -> None:
        self._until_s: dict[bytes, float | None] = {}
        self._ends: list[tuple[float, int, bytes]] = []
        """Heap of (end, serial, digest); an entry counts only if the pin still ends then."""
        self._serial = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._until_s

    def __len__(self) -> int:
        return len(self._until_s)

    def has(self, digest: bytes, until_s: float | None) -> bool:
        """Whether a page has just this pin."""
        return digest in self._until_s and self._until_s[digest] == until_s

    def all(self) -> list[tuple[bytes, float | None]]:
        """Return (digest, time at which it ends, None for never) of each, oldest first."""
        return list(self._until_s.items())

    def add(self, digests: Iterable[bytes], until_s: float | None) -> None:
        """Keep pages until then, None for good; an earlier pin of a page is replaced."""
        for digest in digests:
            self._until_s[digest] = until_s
            if until_s is not None:
                self._serial += 1
                heapq.heappush(self._ends, (until_s, self._serial, digest))

    def remove(self, digests: Iterable[bytes]) -> None:
        """End pins; a page without one is skipped."""
        for digest in digests:
            self._until_s.pop(digest, None)

    def expire(self, now_s: float, *, most_pins: int) -> tuple[bytes, ...]:
        """End up to most_pins pins whose time is over; return their pages in the order of ends."""
        ended: list[bytes] = []
        while self._ends and self._ends[0][0] <= now_s and len(ended) < most_pins:
            until_s, _, digest = heapq.heappop(self._ends)
            if digest in self._until_s and self._until_s[digest] == until_s:
                del self._until_s[digest]
                ended.append(digest)
        return tuple(ended)
