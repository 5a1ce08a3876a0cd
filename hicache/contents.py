"""What is in the cache and what goes: the index, pins, limits and doomed pages. Pure.

Everything that takes a page out of the index passes through here: it is doomed, counted and told.
Time enters as now_s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from chunkmesh.coverage import Coverage
from chunkmesh.errors import InvalidRequest, InvariantViolated
from chunkmesh.indexed_page import IndexedPage, PageLock, PagePlace
from chunkmesh.page_tree import PageTree
from chunkmesh.prefix_index import PrefixIndex
from chunkmesh.remains import Remains
from chunkmesh.stored_page import StoredPage
from hicache.bounds import Bounds
from hicache.changes import Change, ChangeKind, OnChange, Stored, changes_of
from hicache.doomed import Doomed
from hicache.eviction_policy import EvictionPolicy
from hicache.pins import Pins
from hicache.selection import Selection, WouldGo, removable, selected
from hicache.tallies import Amount, Removal, amount_of, removal_of

MOST_PAGES = 2000
"""Evicted, or with a pin that ends, at once; some 20 ms."""
MOST_DROPPED = 20_000
"""Items of what was forgotten that are let go at once."""


class CacheContents:
    """Owner of pages, pins, limits and doomed pages."""

    def __init__(self, *, budget_bytes: int, policy: EvictionPolicy, on_change: OnChange) -> None:
        """Take the budget, 0 for none, the order of eviction and who is told of changes."""
        self.index = PrefixIndex(policy.order)
        self.bounds = Bounds(budget_bytes)
        self.doomed = Doomed()
        self.pins = Pins()
        self.evicts_until_s = math.inf
        """Until when the limits are kept here."""
        self.num_evicted_pages = 0
        """Pages that went to keep a limit."""
        self.is_over = False
        """Whether there is more to evict, to unpin or to let go than what was done at once."""
        self._remains = Remains()
        self._policy = policy
        self._on_change = on_change

    @property
    def tree(self) -> PageTree:
        """How pages hang together; to look at only."""
        return self.index.tree

    def forget(self) -> None:
        """Forget all pages, doomed ones too; pins and quotas stay."""
        self._remains.add(*self.index.clear(), *self.doomed.clear())
        self.is_over = True

    def go_on(self, *, now_s: float) -> None:
        """Do more of what was too much at once; see is_over."""
        self._remains.drop(MOST_DROPPED)
        self.is_over = bool(self._remains)
        self.expire_pins(now_s)
        self.keep_limits(self.bounds.quotas, now_s=now_s)

    def commit(
        self, namespace: bytes, places: Iterable[PagePlace], coverage: Coverage, *, now_s: float
    ) -> int:
        """Record pages of one namespace stored now; return how many became visible and stay.

        Raises:
            InvalidRequest: a page contradicts what is known of it; those before it are recorded.
        """
        recorded: list[IndexedPage] = []
        became_visible: list[IndexedPage] = []
        try:
            for place in places:
                if place.digest not in self.doomed:
                    page, became = self.index.cover(place, coverage, now_s=now_s)
                    recorded.append(page)
                    if became:
                        became_visible.append(page)
        finally:
            if recorded:
                self._on_change(
                    Change(
                        kind=ChangeKind.COMMITTED,
                        namespace=namespace,
                        digests=tuple(page.digest for page in recorded),
                        num_bytes=len(recorded) * coverage.num_bytes,
                        stored=_stored(recorded, coverage),
                    )
                )
            self._settle(recorded, now_s=now_s)
        return sum(page in self.tree for page in became_visible)

    def learn(self, places: Iterable[PagePlace], coverage: Coverage, *, now_s: float) -> None:
        """Record pages of whose commit another replica tells; nobody is told again.

        Raises:
            InvalidRequest: as commit does.
        """
        recorded: list[IndexedPage] = []
        try:
            for place in places:
                if place.digest not in self.doomed:
                    page, _ = self.index.cover(place, coverage, now_s=now_s)
                    recorded.append(page)
        finally:
            self._settle(recorded, now_s=now_s)

    def adopt(self, pages: Iterable[StoredPage], *, now_s: float) -> int:
        """Record pages found in Redis; return how many were of no use."""
        num_refused = 0
        recorded: list[IndexedPage] = []
        for found in pages:
            place = _place(found)
            if place is None or found.coverage is None:
                num_refused += 1
            elif found.digest not in self.doomed:
                try:
                    page, _ = self.index.cover(place, found.coverage, now_s=now_s, is_use=False)
                    recorded.append(page)
                except InvalidRequest:
                    num_refused += 1
        self._settle(recorded, now_s=now_s)
        return num_refused

    def find(self, digest: bytes) -> IndexedPage | None:
        """Return a page that is known, or that is doomed by an eviction."""
        return self.tree.get(digest) or next(self.doomed.evicted([digest]), None)

    def lock(self, digests: Sequence[bytes]) -> PageLock:
        """Lock those of the pages that are known, or that are doomed by an eviction."""
        return self.index.lock([*self.tree.known(digests), *self.doomed.evicted(digests)])

    def unlock(self, locks: Iterable[PageLock], *, now_s: float) -> None:
        """End locks and evict what they held back."""
        namespaces: dict[bytes, None] = {}
        for lock in locks:
            self.index.unlock(lock)
            namespaces.update((page.namespace, None) for page in lock.pages)
        if namespaces:
            self.keep_limits(namespaces, now_s=now_s)

    def keep_limits(self, namespaces: Iterable[bytes], *, now_s: float) -> None:
        """Evict what is over the quotas of those namespaces and over the budget, or begin to."""
        if now_s < self.evicts_until_s:
            victims, is_over = self.bounds.evict(self.index, namespaces, most_pages=MOST_PAGES)
            self.is_over |= is_over
            self._evicted(victims, now_s=now_s)

    def invalidate(self, digests: Iterable[bytes]) -> int:
        """Forget broken pages and all below them, held or not; return how many."""
        pages = [page for digest in digests for page in self.index.invalidate(digest)]
        self.doomed.add_broken(pages)
        self._tell(ChangeKind.INVALIDATED, pages)
        return len(pages)

    def drop(self, digests: Iterable[bytes], *, now_s: float) -> int:
        """Forget pages and all below them, which another replica unlinks; return how many."""
        pages = [page for digest in digests for page in self.index.invalidate(digest)]
        self.doomed.add_elsewhere(pages, now_s=now_s)
        return len(pages)

    def evict(
        self, selection: Selection, *, now_s: float, dry_run: bool, would_go: WouldGo | None = None
    ) -> Removal:
        """Evict chosen pages, but for held ones and what is above those.

        would_go counts, by parent, what would have gone in earlier calls of one dry run.
        """
        chosen = tuple(selected(selection, self.tree, now_s))
        going = removable(chosen, self.tree, would_go)
        if not dry_run:
            self.index.remove(going)
            self.doomed.add_evicted(going, now_s=now_s)
            self._tell(ChangeKind.DELETED, going[::-1])
        return removal_of(going, num_held_pages=len(chosen) - len(going))

    def over_quota(self, namespace: bytes, max_bytes: int) -> Iterator[int | None]:
        """Walk through the bytes of the pages that a quota, 0 for none, would evict.

        None is a step between.
        """
        excess = self.bounds.excess(self.index, namespace, max_bytes)
        pages = self.index.evicting(excess, namespace=namespace) if excess else ()
        return (None if page is None else page.num_bytes for page in pages)

    def set_quota(self, namespace: bytes, max_bytes: int, *, now_s: float) -> None:
        """Bound a namespace, 0 for no limit, and begin to evict what is over it."""
        self.bounds.set_quota(namespace, max_bytes)
        self._on_change(Change(kind=ChangeKind.QUOTA_SET, namespace=namespace, num_bytes=max_bytes))
        self.keep_limits([namespace], now_s=now_s)

    def pin(
        self, selection: Selection, *, until_s: float | None, now_s: float, dry_run: bool
    ) -> Amount:
        """Pin chosen pages; an earlier pin of a page is replaced."""
        pages = tuple(selected(selection, self.tree, now_s))
        if not dry_run:
            self.pins.add((page.digest for page in pages), until_s)
            self.apply_pins(pages)
            self._tell(ChangeKind.PINNED, pages)
        return amount_of(pages)

    def unpin(self, selection: Selection, *, now_s: float, dry_run: bool) -> Amount:
        """End the pins of chosen pages."""
        chosen = tuple(selected(selection, self.tree, now_s))
        pages = [page for page in chosen if page.pinned]
        if not dry_run:
            self.pins.remove(page.digest for page in pages)
            self._release_pins(pages, now_s=now_s)
        return amount_of(pages)

    def expire_pins(self, now_s: float) -> None:
        """End the pins whose time is over, or begin to."""
        ended = self.pins.expire(now_s, most_pins=MOST_PAGES)
        self.is_over |= len(ended) == MOST_PAGES
        self._release_pins(self.tree.known(ended), now_s=now_s, by_time=True)

    def _settle(self, recorded: Sequence[IndexedPage], *, now_s: float) -> None:
        """Pin what a pin waited for, and make room for pages just recorded."""
        self.apply_pins(recorded)
        namespaces = dict.fromkeys(page.namespace for page in recorded)
        if self._policy.spares_newcomers:
            lock = self.index.lock(recorded)
            self.keep_limits(namespaces, now_s=now_s)
            self.index.unlock(lock)
        self.keep_limits(namespaces, now_s=now_s)

    def check_integrity(self) -> None:
        """Compare counts, links and pins with the pages themselves.

        Raises:
            InvariantViolated: they disagree.
        """
        self.index.check_integrity()
        for page in self.tree.everything():
            if page.pinned != (page.digest in self.pins):
                raise InvariantViolated(f"page {page.digest.hex()}: wrong pin")
            if page.digest in self.doomed:
                raise InvariantViolated(f"page {page.digest.hex()} is doomed and known")

    def tell(self, change: Change) -> None:
        """Let a change be heard of."""
        self._on_change(change)

    def apply_pins(self, pages: Iterable[IndexedPage]) -> None:
        """Hold those of the pages that have a pin."""
        for page in pages:
            if not page.pinned and page.digest in self.pins:
                self.index.pin(page, pinned=True)

    def _release_pins(
        self, pages: Sequence[IndexedPage], *, now_s: float, by_time: bool = False
    ) -> None:
        for page in pages:
            self.index.pin(page, pinned=False)
        for change in changes_of(ChangeKind.UNPINNED, pages, by_time=by_time):
            self._on_change(change)
        if pages:
            self.keep_limits(dict.fromkeys(page.namespace for page in pages), now_s=now_s)

    def _evicted(self, victims: Sequence[IndexedPage], *, now_s: float) -> None:
        self.num_evicted_pages += len(victims)
        self.doomed.add_evicted(victims, now_s=now_s)
        self._tell(ChangeKind.EVICTED, victims[::-1])

    def _tell(self, kind: ChangeKind, pages: Iterable[IndexedPage]) -> None:
        for change in changes_of(kind, pages):
            self._on_change(change)


def _stored(pages: Iterable[IndexedPage], coverage: Coverage) -> Stored:
    return Stored(
        pages=tuple((page.digest, page.parent, page.priority) for page in pages),
        coverage=coverage,
    )


def _place(found: StoredPage) -> PagePlace | None:
    record = found.record
    if record is None:
        return None
    return PagePlace(
        namespace=record.namespace,
        digest=found.digest,
        parent=record.parent,
        page_index=record.page_index,
    )
