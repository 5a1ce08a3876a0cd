"""Which prefixes the stages of a route hold in host memory, between devices and Redis. Pure.

A host page id means the same page on every stage, as a page id does. All stages copy pages out of
the pool and back at the same places of their streams, so what is ordered here is there from then
on, for every later order. An output holds the host pages of its own prefix while it has its pages,
so that a long prompt does not evict its own beginning; a load holds those that it will copy back.
Source: the host memory of SGLang's HiCache
(https://docs.sglang.ai/advanced_features/hicache_design.html).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.actions import PageToStore, SendSavePages
from scheduler.pages import PageAllocator


class HostPages:
    """Owner of the host pages of one route."""

    def __init__(self, num_pages: int) -> None:
        """Begin with num_pages >= 0 empty pages."""
        self._pages = PageAllocator(num_pages)
        self.num_dropped = 0
        """Pages that found no room, since this was asked last."""

    @property
    def num_pages(self) -> int:
        """Host pages that every stage has."""
        return self._pages.num_pages

    @property
    def num_cached(self) -> int:
        """Those with contents."""
        return len(self._pages.cached)

    @property
    def num_held(self) -> int:
        """Those that cannot be evicted now."""
        return self._pages.num_pages - self._pages.num_free

    def count(self, digests: Sequence[bytes], limit: int) -> int:
        """Count the leading pages of a prompt that are here, at most limit; changes nothing."""
        return self._pages.cached.count(digests, limit) if self.num_cached else 0

    def has(self, digest: bytes) -> bool:
        """Whether a page is here."""
        return self._pages.cached.has(digest)

    def find(self, digests: Iterable[bytes]) -> list[PageToStore]:
        """Return those of some pages that are here; page_id is where they lie."""
        return self._pages.cached.find(digests)

    def hold(self, digests: Sequence[bytes]) -> tuple[int, ...]:
        """Keep pages that are here from eviction; return where they lie."""
        host_ids = self._pages.cached.page_ids(digests)
        if host_ids:
            self._pages.take_cached(host_ids)
        return host_ids

    def release(self, host_ids: Sequence[int]) -> None:
        """Let pages go that were held."""
        if host_ids:
            self._pages.release(host_ids)

    def save(
        self,
        namespace: bytes,
        digests: Sequence[bytes],
        page_ids: Sequence[int],
        num_held: int,
        *,
        epoch: int,
    ) -> tuple[list[int], SendSavePages | None]:
        """Take in the leading pages of a prompt, full on all devices, as far as there is room.

        The first num_held of them are held already. Return the others that are held by now, and
        the order for the epoch's stages to copy those that were not here.
        """
        num_here = self.count(digests, len(digests))
        held = list(self.hold(digests[num_held:num_here]))
        num_new = min(len(digests) - num_here, self._pages.num_free)
        self.num_dropped += len(digests) - num_here - num_new
        if not num_new:
            return held, None
        above = self._pages.cached.page_ids(digests[:num_here])
        host_ids = self._pages.allocate(num_new)
        end = num_here + num_new
        self._pages.keep(namespace, digests[:end], above + host_ids)
        order = SendSavePages(
            epoch=epoch,
            digests=tuple(digests[num_here:end]),
            page_ids=tuple(page_ids[num_here:end]),
            host_ids=host_ids,
        )
        return held + list(host_ids), order

    def rested(self) -> list[PageToStore]:
        """Return the pages that nobody holds, the last used first."""
        return self._pages.cached.rested()

    @property
    def has_news(self) -> bool:
        """Whether pages made room or found none, since that was asked last."""
        return self._pages.has_evicted or self.num_dropped > 0

    def take_evicted(self) -> list[PageToStore]:
        """Return what has made room since this was asked last; page_id is where it lies."""
        return self._pages.take_evicted()

    def distrust(self, digests: Iterable[bytes]) -> None:
        """Forget pages, and all that was computed from them."""
        self._pages.distrust([page.page_id for page in self.find(digests)])

    def forget(self) -> int:
        """Forget all pages; return how many there were."""
        return self._pages.forget_cached()

    def partial_run(self, digests: Sequence[bytes], first: int) -> tuple[list[int], frozenset[int]]:
        """Return where pages from first on lie that some stages have, and which stages lack any."""
        return self._pages.cached.partial_run(digests, first)

    def lose(self, stages: frozenset[int]) -> None:
        """Note that what some stages hold of all pages is gone."""
        self._pages.lose(stages)

    def drop_holds(self) -> None:
        """Begin anew with the pages as they are: nobody is left who held any."""
        self._pages.drop_holds()

    def check_integrity(self) -> None:
        """Compare the counts with each other.

        Raises:
            InvariantViolated: they differ.
        """
        self._pages.check_integrity()
