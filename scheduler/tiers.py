"""What the workers of a route hold of prompts: device pages, and host pages behind them. Pure.

Each tier holds whole prefixes of its own, so a prompt's hit is the longer of the two. Both outlive
an epoch in which the same workers form the route.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.actions import PageToStore, Tier
from scheduler.cache_counts import CacheCounts
from scheduler.host_pages import HostPages
from scheduler.pages import PageAllocator


class Tiers:
    """Owner of both, and of what is known to be in Redis of them."""

    def __init__(self, *, num_pages: int, num_host_pages: int = 0) -> None:
        """Begin with all pages empty."""
        self.device = PageAllocator(num_pages)
        self.host = HostPages(num_host_pages)
        self._stored: set[bytes] = set()
        """Pages of either tier that Redis has or is being given, as far as is known."""

    def is_stored(self, digest: bytes) -> bool:
        """Whether a page is in Redis, or on its way, as far as is known."""
        return digest in self._stored

    def mark_stored(self, digests: Iterable[bytes]) -> None:
        """Note that pages are in Redis or on their way."""
        self._stored.update(digests)
        if len(self._stored) > 2 * (self.device.num_pages + self.host.num_pages):
            # Requests that ended before they held what was matched leave marks behind.
            self._stored = {digest for digest in self._stored if self._has(digest)}

    def unmark_stored(self, digests: Iterable[bytes]) -> None:
        """Note that Redis does not have pages, or must not."""
        self._stored.difference_update(digests)

    def take_gone(self, counts: CacheCounts) -> tuple[list[PageToStore], list[PageToStore]]:
        """Return what neither tier has any more, since this was asked last; count what was evicted.

        First those that lie on the devices, then those in host memory, in the order of their
        prompts. They can be copied until a later order overwrites them. Those that Redis has are
        left out.
        """
        if not (self.device.has_evicted or self.host.has_news):
            return [], []
        device, host = self.device.take_evicted(), self.host.take_evicted()
        counts.evicted_pages += len(device)
        counts.host_evicted_pages += len(host)
        counts.host_dropped_pages += self.host.num_dropped
        self.host.num_dropped = 0
        from_device = self._gone(device)
        from_host = self._gone(host)
        lost = {page.digest for page in (*device, *host) if not self._has(page.digest)}
        self._stored -= lost
        known = {page.digest for page in from_device}
        return from_device, [page for page in from_host if page.digest not in known]

    def hold(self, tier: Tier, digests: Sequence[bytes]) -> list[PageToStore]:
        """Keep those of some pages from eviction that a tier has; return them."""
        if tier == "host":
            pages = self.host.find(digests)
            self.host.hold([page.digest for page in pages])
            return pages
        pages = self.device.cached.find(digests)
        self.device.take_cached([page.page_id for page in pages])
        return pages

    def release(self, tier: Tier, page_ids: Sequence[int]) -> None:
        """Let pages of a tier go that were held."""
        if tier == "host":
            self.host.release(page_ids)
        else:
            self.device.release(page_ids)

    def distrust(self, page_ids: Sequence[int], digests: Sequence[bytes]) -> None:
        """Forget what pages hold, and what was computed from them, in both tiers."""
        self.device.distrust(page_ids)
        self.host.distrust(digests)
        self.unmark_stored(digests)

    def forget(self) -> int:
        """Forget what all pages hold; return how many device pages that were."""
        self.host.forget()
        self._stored.clear()
        return self.device.forget_cached()

    def lose(self, stages: frozenset[int], *, num_host_pages: int) -> None:
        """Note that some stages hold nothing any more; host memory may be another size by that."""
        self.device.lose(stages)
        if self.host.num_pages == num_host_pages:
            self.host.lose(stages)
        else:
            self.host = HostPages(num_host_pages)

    def drop_holds(self) -> None:
        """Begin anew with the pages as they are: nobody is left who held any."""
        self.device.drop_holds()
        self.host.drop_holds()

    def check_integrity(self) -> None:
        """Compare the counts of each tier with each other.

        Raises:
            InvariantViolated: they differ.
        """
        self.device.check_integrity()
        self.host.check_integrity()

    def _has(self, digest: bytes) -> bool:
        return self.device.cached.has(digest) or self.host.has(digest)

    def _gone(self, evicted: Iterable[PageToStore]) -> list[PageToStore]:
        gone = [
            page for page in evicted if not (self._has(page.digest) or page.digest in self._stored)
        ]
        return sorted(gone, key=lambda page: page.page_index)
