"""What other replicas of the index do, applied to this one. Pure; time enters as now_s.

Nothing here is told again, but what is evicted because of it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chunkmesh.coverage import Coverage
from chunkmesh.indexed_page import PagePlace
from hicache.contents import CacheContents
from hicache.leases import Leases


class Elsewhere:
    """Changes the contents and the leases of one replica."""

    def __init__(self, contents: CacheContents, leases: Leases) -> None:
        self._contents = contents
        self._leases = leases

    def committed(
        self,
        namespace: bytes,
        pages: Iterable[tuple[bytes, bytes, int]],
        coverage: Coverage,
        *,
        now_s: float,
    ) -> None:
        """Record (digest, parent, priority) pages.

        Raises:
            InvalidRequest: a page contradicts what is known of it; those before it are recorded.
        """
        places = (
            PagePlace(namespace=namespace, digest=digest, parent=parent, priority=priority)
            for digest, parent, priority in pages
        )
        self._contents.learn(places, coverage, now_s=now_s)

    def matched(self, last: bytes, *, now_s: float) -> None:
        """Note that the prompt that ends with a page is used now."""
        self._contents.index.match(self.path(last), now_s=now_s)

    def path(self, last: bytes) -> tuple[bytes, ...]:
        """Return the pages down to one, as far as they are known or were evicted here."""
        pages: dict[bytes, None] = {}
        page = self._contents.find(last)
        while page is not None and page.digest not in pages:
            pages[page.digest] = None
            page = self._contents.find(page.parent)
        return tuple(reversed(pages))

    def hold(self, lease_id: str, digests: Sequence[bytes], *, ttl_s: float, now_s: float) -> None:
        """Take note of a lease that was given or renewed; it holds doomed pages too.

        It never ends earlier than was known before: what is told may be older.
        """
        lock = self._contents.lock(digests)
        ttl_s = max(ttl_s, self._leases.rest_s(lease_id, now_s))
        self.released(lease_id, now_s=now_s)
        self._leases.adopt(lease_id, lock, ttl_s=ttl_s, now_s=now_s)

    def released(self, lease_id: str, *, now_s: float) -> bool:
        """End a lease; return whether it was live."""
        lock = self._leases.release(lease_id)
        if lock is None:
            return False
        self._contents.unlock([lock], now_s=now_s)
        return True

    def untold_leases(self, now_s: float) -> list[tuple[str, bytes, float]]:
        """Return (id, last page, how long it still holds) of the leases that were given here.

        A replica that has just come knows none of them.
        """
        return [
            (lease_id, last, ttl_s)
            for lease_id, ttl_s in self._leases.own(now_s)
            if (last := self._leases.last_page(lease_id)) is not None
        ]

    def drop(self, digests: Iterable[bytes], *, now_s: float) -> int:
        """Forget pages and all below them, which will be unlinked; return how many.

        They are doomed here too, until unlinked or for half a minute.
        """
        return self._contents.drop(digests, now_s=now_s)

    def unlinked(self, digests: Sequence[bytes], *, now_s: float) -> None:
        """Forget pages that are gone from Redis; they may be stored anew."""
        self._contents.drop(digests, now_s=now_s)
        self._contents.doomed.remove(digests)
