"""Which pages of one memory hold which prefix, so that later requests may use them. Pure.

The memory is a route's KV pool, or what its stages keep of it in host memory.

A page enters once it is full and acknowledged by all stages; its parent is there already. It is
idle while nobody holds it, and only then evicted: least recently used first, leaves before what
they hang on. Who holds pages is counted elsewhere (pages.py), and told here.
Source: the prefix tree in SGLang's RadixAttention
(https://lmsys.org/blog/2024-01-17-sglang/).
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
from collections.abc import Iterable, Sequence

from chunkmesh.errors import InvariantViolated
from scheduler.actions import PageToStore


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class _Page:
    """A page of the memory that may be found."""

    page_id: int
    digest: bytes
    namespace: bytes
    page_index: int
    """Of the page in its prompt: 0 without a parent, else the parent's + 1."""
    parent: _Page | None
    """None for the first page of a prompt; else in the index, too."""
    children: dict[int, _Page] = dataclasses.field(default_factory=dict)
    """By page id."""
    is_idle: bool = False
    last_used: int = 0
    """Tick of the last change between idle and held."""
    is_queued: bool = False
    """Whether it stands in the queue of leaves."""
    lacking: frozenset[int] = frozenset()
    """Stages whose memory of it is another's now; with it, those of all below it lack it too."""


class CachedPages:
    """Owner of the index of one memory."""

    def __init__(self) -> None:
        """Begin with no page."""
        self.num_idle = 0
        """Pages that nobody holds; 0 <= num_idle <= len(self)."""
        self.has_partial = False
        """Whether some stages may lack some pages."""
        self._by_digest: dict[bytes, _Page] = {}
        self._by_id: dict[int, _Page] = {}
        self._leaves: list[tuple[int, int, _Page]] = []
        """Heap of (last_used when queued, serial, page); holds every idle leaf, once."""
        self._tick = 0
        self._serial = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, page_id: int) -> bool:
        return page_id in self._by_id

    def count(self, digests: Sequence[bytes], limit: int) -> int:
        """Count the leading pages of a prompt that all stages have, at most limit.

        With a page its parent is here, so there is one border to search.
        """
        return bisect.bisect_left(
            range(limit), x=True, key=lambda index: not self.has(digests[index])
        )

    def partial_run(self, digests: Sequence[bytes], first: int) -> tuple[list[int], frozenset[int]]:
        """Return where the pages from first on lie that some stages have and nobody holds.

        With all stages that lack any of them.
        """
        page_ids: list[int] = []
        lacking: frozenset[int] = frozenset()
        for digest in digests[first:] if self.has_partial else ():
            page = self._by_digest.get(digest)
            if page is None or not page.is_idle or not page.lacking:
                break
            page_ids.append(page.page_id)
            lacking |= page.lacking
        return page_ids, lacking

    def lose(self, stages: frozenset[int]) -> None:
        """Note that what some stages have of all pages is gone."""
        self.has_partial = True
        for page in self._by_id.values():
            page.lacking |= stages

    def page_ids(self, digests: Iterable[bytes]) -> tuple[int, ...]:
        """Return where pages lie that are here."""
        return tuple(self._by_digest[digest].page_id for digest in digests)

    def find(self, digests: Iterable[bytes]) -> list[PageToStore]:
        """Return those of some pages that are here."""
        pages = (self._by_digest.get(each) for each in digests)
        return [_described(page) for page in pages if page is not None and not page.lacking]

    def has(self, digest: bytes) -> bool:
        """Whether a page is here, on all stages."""
        page = self._by_digest.get(digest)
        return page is not None and not page.lacking

    def insert(
        self, namespace: bytes, digests: Sequence[bytes], page_ids: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        """Take in a prompt's leading pages, all of them held and whole.

        One whose tokens another page has already stays out, unless that lacks stages. Return the
        ids that are new here, and those that are not here any more.
        """
        removed: list[int] = []
        first = self.count(digests, len(digests))
        parent = self._by_digest[digests[first - 1]] if first else None
        new = zip(digests[first:], page_ids[first:], strict=True)
        for page_index, (digest, page_id) in enumerate(new, start=first):
            if (partial := self._by_digest.get(digest)) is not None:
                removed += self._make_whole(partial, page_id)
                parent = partial
                continue
            if page_id in self._by_id:
                raise InvariantViolated(f"page {page_id} holds two prefixes")
            page = _Page(
                page_id=page_id,
                digest=digest,
                namespace=namespace,
                page_index=page_index,
                parent=parent,
            )
            if parent is not None:
                parent.children[page_id] = page
            self._by_digest[digest] = self._by_id[page_id] = parent = page
        return list(page_ids[first:]), removed

    def wake(self, page_ids: Iterable[int]) -> None:
        """Note that pages which were idle are held."""
        self._tick += 1
        for page_id in page_ids:
            page = self._by_id[page_id]
            page.is_idle, page.last_used = False, self._tick
            self.num_idle -= 1

    def rest(self, page_ids: Iterable[int]) -> None:
        """Note that nobody holds pages any more."""
        self._tick += 1
        for page_id in page_ids:
            page = self._by_id[page_id]
            page.is_idle, page.last_used = True, self._tick
            self.num_idle += 1
            self._queue_leaf(page)

    def rested(self) -> list[PageToStore]:
        """Return the idle pages, the last used first, and a page before what hangs on it."""
        idle = [page for page in self._by_id.values() if page.is_idle and not page.lacking]
        idle.sort(key=lambda page: (-page.last_used, page.page_index))
        return [_described(page) for page in idle]

    def evict(self, num_pages: int) -> tuple[list[int], list[PageToStore]]:
        """Forget num_pages idle pages; return where they lay, and those that all stages had.

        Leaves first; an idle page with held ones below it only when no idle leaf is left, and then
        those below are forgotten too.

        Raises:
            InvariantViolated: fewer are idle.
        """
        if num_pages > self.num_idle:
            raise InvariantViolated(f"{num_pages} pages to evict, {self.num_idle} are idle")
        most_idle = self.num_idle - num_pages
        forgotten: list[_Page] = []
        while self.num_idle > most_idle:
            page = self._take_leaf() or self._oldest_idle()
            forgotten += self._forget_below(page)
        whole = [_described(page) for page in forgotten if not page.lacking]
        return [page.page_id for page in forgotten], whole

    def forget(self, page_ids: Iterable[int]) -> list[int]:
        """Forget those of the pages that are in here, and all below them; return which."""
        forgotten: list[int] = []
        for page_id in page_ids:
            if page_id in self._by_id:
                below = self._forget_below(self._by_id[page_id])
                forgotten += [page.page_id for page in below]
        return forgotten

    def clear(self) -> int:
        """Forget every page; return how many there were."""
        num_pages = len(self)
        self._by_digest.clear()
        self._by_id.clear()
        self._leaves.clear()
        self.num_idle, self.has_partial = 0, False
        return num_pages

    def check_integrity(self, held: Iterable[int]) -> None:
        """Compare the index with itself and with who holds pages; for tests and debugging.

        Raises:
            InvariantViolated: they disagree.
        """
        pages = self._by_id.values()
        queued = {id(page) for _, _, page in self._leaves if page.is_queued}
        idle = {page.page_id for page in pages if page.is_idle}
        checks = {
            "digests": set(map(id, self._by_digest.values())) == set(map(id, pages)),
            "idle": len(idle) == self.num_idle and idle == self._by_id.keys() - set(held),
            "parents": all(self._hangs_right(page) for page in pages),
            "queue": all(id(page) in queued for page in pages if self._is_idle_leaf(page)),
        }
        broken = [name for name, holds in checks.items() if not holds]
        if broken:
            raise InvariantViolated(f"cached pages: wrong {', '.join(broken)}")

    def _hangs_right(self, page: _Page) -> bool:
        """Whether a page and its parent know each other, and the parent lacks no more stages."""
        parent = page.parent
        return parent is None or (
            self._by_id.get(parent.page_id) is parent
            and page.page_id in parent.children
            and parent.lacking <= page.lacking
        )

    def _make_whole(self, page: _Page, page_id: int) -> list[int]:
        """Let a page lie where all stages have it, held; return where it lay, if elsewhere."""
        page.lacking = frozenset()
        if page.page_id == page_id:
            return []
        if page_id in self._by_id:
            raise InvariantViolated(f"page {page_id} holds two prefixes")
        before, page.page_id = page.page_id, page_id
        self.num_idle -= page.is_idle
        page.is_idle = False
        self._by_id[page_id] = self._by_id.pop(before)
        if page.parent is not None:
            page.parent.children[page_id] = page.parent.children.pop(before)
        return [before]

    def _is_idle_leaf(self, page: _Page) -> bool:
        return page.is_idle and not page.children and self._by_id.get(page.page_id) is page

    def _queue_leaf(self, page: _Page) -> None:
        if not page.is_queued and self._is_idle_leaf(page):
            page.is_queued = True
            self._serial += 1
            heapq.heappush(self._leaves, (page.last_used, self._serial, page))

    def _take_leaf(self) -> _Page | None:
        """Return the idle leaf that was used longest ago, if there is one."""
        while self._leaves:
            queued_at, _, page = heapq.heappop(self._leaves)
            page.is_queued = False
            if page.last_used == queued_at and self._is_idle_leaf(page):
                return page
            self._queue_leaf(page)
        return None

    def _oldest_idle(self) -> _Page:
        """Return the idle page that was used longest ago; there is one."""
        return min(
            (page for page in self._by_id.values() if page.is_idle),
            key=lambda page: page.last_used,
        )

    def _forget_below(self, top: _Page) -> list[_Page]:
        """Forget a page and all below it; return them."""
        if top.parent is not None:
            del top.parent.children[top.page_id]
            self._queue_leaf(top.parent)
        pending, forgotten = [top], list[_Page]()
        while pending:
            page = pending.pop()
            pending += page.children.values()
            del self._by_digest[page.digest], self._by_id[page.page_id]
            self.num_idle -= page.is_idle
            forgotten.append(page)
        return forgotten


def _described(page: _Page) -> PageToStore:
    return PageToStore(
        namespace=page.namespace,
        digest=page.digest,
        parent=page.namespace if page.parent is None else page.parent.digest,
        page_index=page.page_index,
        page_id=page.page_id,
    )
