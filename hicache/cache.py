"""What the cache holds and may drop: the index, its leases, the byte budget and counters. Pure.

Changed by the service and by a rebuild, on the event loop only. A page that left the index is
doomed until it is unlinked in Redis; a commit of it meanwhile is not believed, because the unlink
may come later. The shell takes doomed pages away with doomed() and says unlinked().
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from chunkmesh.coverage import Coverage
from chunkmesh.errors import InvalidRequest
from chunkmesh.prefix_index import PageInfo, PrefixIndex
from chunkmesh.stored_page import StoredPage
from hicache.leases import Leases


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """The longest stored prefix."""

    num_pages: int
    lease_id: str
    """Empty if there are no pages or none was wanted."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Counters:
    """Since the start of the process."""

    queries: int = 0
    queried_pages: int = 0
    hit_pages: int = 0
    evicted_pages: int = 0


class PrefixCache:
    """Owner of the index and the leases."""

    def __init__(self, *, name: str, budget_bytes: int) -> None:
        """Take a name unique to this process start, and the budget; 0 means none."""
        self.budget_bytes = budget_bytes
        self.counters = Counters()
        self.generation = 0
        """Raised by forget, so that a rebuild under way notices."""
        self._index = PrefixIndex()
        self._leases = Leases(name)
        self._doomed: dict[bytes, None] = {}

    @property
    def num_pages(self) -> int:
        """Pages stored for all layers."""
        return self._index.num_pages

    @property
    def num_partial_pages(self) -> int:
        """Pages stored for some layers only."""
        return self._index.num_partial_pages

    @property
    def is_empty(self) -> bool:
        """Whether no page is known, not even in part."""
        return self.num_pages + self.num_partial_pages == 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages."""
        return self._index.num_bytes

    @property
    def num_leases(self) -> int:
        """Live leases."""
        return len(self._leases)

    def match(self, digests: Sequence[bytes], *, lease_ttl_s: float, now_s: float) -> Hit:
        """Find the leading visible pages and lease them if lease_ttl_s > 0."""
        num_pages = self._index.match(digests)
        self.count_query(len(digests))
        self.counters.hit_pages += num_pages
        if num_pages == 0 or lease_ttl_s <= 0:
            return Hit(num_pages=num_pages, lease_id="")
        lock = self._index.lock(digests[:num_pages])
        lease_id = self._leases.take(lock, ttl_s=lease_ttl_s, now_s=now_s)
        return Hit(num_pages=num_pages, lease_id=lease_id)

    def count_query(self, num_pages: int) -> None:
        """Count a question, also one that is answered as a miss because Redis is away."""
        self.counters.queries += 1
        self.counters.queried_pages += num_pages

    def release(self, lease_id: str) -> None:
        """End a lease; nothing happens if it has ended."""
        lock = self._leases.release(lease_id)
        if lock is not None:
            self._index.unlock(lock)
            self._trim()

    def tick(self, now_s: float) -> None:
        """End leases whose time is over, and evict what they held back."""
        for lock in self._leases.expire(now_s):
            self._index.unlock(lock)
        self._trim()

    def commit(self, pages: Iterable[tuple[bytes, bytes]], coverage: Coverage) -> int:
        """Record (digest, parent) pages that a worker stored; return how many became visible.

        Raises:
            InvalidRequest: a page contradicts what is known of it; those before it are recorded.
        """
        num_visible = 0
        for digest, parent in pages:
            if digest not in self._doomed:
                num_visible += self._index.cover(digest, parent, coverage)
        self._trim()
        return num_visible

    def adopt(self, pages: Iterable[StoredPage]) -> int:
        """Record pages found in Redis; return how many were of no use."""
        num_refused = 0
        for page in pages:
            if page.record is None or page.coverage is None:
                num_refused += 1
            elif page.digest not in self._doomed:
                try:
                    self._index.cover(page.digest, page.record.parent, page.coverage)
                except InvalidRequest:
                    num_refused += 1
        self._trim()
        return num_refused

    def invalidate(self, digests: Iterable[bytes]) -> int:
        """Forget pages and all below them; return how many."""
        removed = [page for digest in digests for page in self._index.invalidate(digest)]
        self._doomed.update(dict.fromkeys(removed))
        return len(removed)

    def known(self) -> frozenset[bytes]:
        """Return the digests of all pages."""
        return self._index.digests()

    def peek(self, digests: Sequence[bytes]) -> int:
        """Count the leading visible pages; changes nothing."""
        return self._index.peek(digests)

    def info(self, digest: bytes) -> PageInfo:
        """Return the state of one page."""
        return self._index.info(digest)

    def forget(self) -> None:
        """Forget all pages and leases, because Redis lost or will lose them."""
        self.generation += 1
        self._index.clear()
        self._leases.clear()
        self._doomed.clear()

    def doomed(self, num_pages: int) -> tuple[bytes, ...]:
        """Return up to num_pages pages to unlink in Redis, oldest first."""
        return tuple(itertools.islice(self._doomed, num_pages))

    def unlinked(self, digests: Iterable[bytes]) -> None:
        """Take note that pages are gone from Redis; they may be stored anew."""
        for digest in digests:
            self._doomed.pop(digest, None)

    def _trim(self) -> None:
        if self.budget_bytes and self._index.num_bytes > self.budget_bytes:
            victims = self._index.evict(self._index.num_bytes - self.budget_bytes)
            self.counters.evicted_pages += len(victims)
            self._doomed.update(dict.fromkeys(victims))
