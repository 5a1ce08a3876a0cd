"""Doomed pages: gone from the index, not yet from Redis. Pure; time enters as now_s.

Until its unlink is done a page must not come back, for the unlink could follow the new write.
Evicted pages wait, because another replica may have leased them in the moment before it heard of
the eviction; broken ones do not. What another replica dooms is only remembered.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from chunkmesh.indexed_page import IndexedPage
from chunkmesh.remains import Container

WAIT_S = 2.0
"""How long after an eviction a lease that another replica gave may still become known."""

ELSEWHERE_S = 30.0
"""After so long another replica has unlinked a page, or died before and let it live."""
_MOST_EXPIRED = 50_000
"""Of those, at once."""


class Doomed:
    """Owner of all doomed pages."""

    def __init__(self) -> None:
        self._broken: dict[bytes, None] = {}
        self._evicted: dict[bytes, tuple[float, IndexedPage]] = {}
        """(time from which it may be unlinked, page), earliest first."""

        self._elsewhere: dict[bytes, float] = {}
        """Time until which it counts as doomed, earliest first."""

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._broken or digest in self._evicted or digest in self._elsewhere

    def add_broken(self, pages: Iterable[IndexedPage]) -> None:
        """Doom pages that may be unlinked at once."""
        self._broken.update((page.digest, None) for page in pages)

    def add_evicted(self, pages: Iterable[IndexedPage], *, now_s: float) -> None:
        """Doom pages that may be unlinked after WAIT_S, if nobody has locked them then."""
        self._evicted.update((page.digest, (now_s + WAIT_S, page)) for page in pages)

    def add_elsewhere(self, pages: Iterable[IndexedPage], *, now_s: float) -> None:
        """Doom pages that another replica unlinks."""
        self._elsewhere.update((page.digest, now_s + ELSEWHERE_S) for page in pages)

    def expire(self, now_s: float) -> None:
        """Wait no longer for other replicas that took too long; of many some wait longer."""
        ended = itertools.takewhile(lambda entry: entry[1] <= now_s, self._elsewhere.items())
        for digest, _ in tuple(itertools.islice(ended, _MOST_EXPIRED)):
            del self._elsewhere[digest]

    def evicted(self, digests: Iterable[bytes]) -> Iterator[IndexedPage]:
        """Yield those of the pages that were evicted and may still be locked."""
        for digest in digests:
            if digest in self._evicted:
                yield self._evicted[digest][1]

    def due(self, num_pages: int, now_s: float) -> tuple[bytes, ...]:
        """Return up to num_pages pages to unlink now."""
        pages = itertools.chain(self._broken, self._due_evicted(now_s))
        return tuple(itertools.islice(pages, num_pages))

    def remove(self, digests: Iterable[bytes]) -> None:
        """Take note that pages are gone from Redis."""
        for digest in digests:
            self._broken.pop(digest, None)
            self._evicted.pop(digest, None)
            self._elsewhere.pop(digest, None)

    def clear(self) -> list[Container]:
        """Forget all doomed pages; return what held them, which is the caller's now."""
        held: list[Container] = [self._broken, self._evicted, self._elsewhere]
        self._broken, self._evicted, self._elsewhere = {}, {}, {}
        return held

    def _due_evicted(self, now_s: float) -> Iterator[bytes]:
        for digest, (due_s, page) in self._evicted.items():
            if due_s > now_s:
                return
            if page.locks == 0:
                yield digest
