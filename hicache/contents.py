"""What is in the cache and what goes: the index, pins, limits and doomed pages. Pure.

Everything that takes a page out of the index passes through here: it is doomed, counted and told.
Time enters as now_s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chunkmesh.indexed_page import IndexedPage, PageLock
from chunkmesh.page_tree import PageTree
from chunkmesh.prefix_index import PrefixIndex
from hicache.bounds import Bounds
from hicache.changes import Change, ChangeKind, OnChange, changes_of
from hicache.doomed import Doomed
from hicache.eviction_policy import EvictionPolicy
from hicache.pins import Pins
from hicache.selection import Everything, Selection, removable, selected
from hicache.tallies import Amount, Removal, amount_of, removal_of


class CacheContents:
    """Owner of pages, pins, limits and doomed pages."""

    def __init__(self, *, budget_bytes: int, policy: EvictionPolicy, on_change: OnChange) -> None:
        """Take the budget, 0 for none, the order of eviction and who is told of changes."""
        self.index = PrefixIndex(policy.order)
        self.bounds = Bounds(budget_bytes)
        self.doomed = Doomed()
        self.pins = Pins()
        self.evicts = True
        """Whether the limits are kept here."""
        self.num_evicted_pages = 0
        """Pages that went to keep a limit."""
        self._policy = policy
        self._on_change = on_change

    @property
    def tree(self) -> PageTree:
        """How pages hang together; to look at only."""
        return self.index.tree

    def forget(self) -> None:
        """Forget all pages, doomed ones too; pins and quotas stay."""
        self.index.clear()
        self.doomed.clear()

    def settle(self, recorded: Sequence[IndexedPage], *, now_s: float) -> None:
        """Pin what waited for it, and make room for pages just recorded."""
        self._apply_pins(recorded)
        namespaces = dict.fromkeys(page.namespace for page in recorded)
        if self._policy.spares_newcomers:
            lock = self.index.lock(recorded)
            self.keep_limits(namespaces, now_s=now_s)
            self.index.unlock(lock)
        self.keep_limits(namespaces, now_s=now_s)

    def unlock(self, locks: Iterable[PageLock], *, now_s: float) -> None:
        """End locks and evict what they held back."""
        namespaces: dict[bytes, None] = {}
        for lock in locks:
            self.index.unlock(lock)
            namespaces.update((page.namespace, None) for page in lock.pages)
        self.keep_limits(namespaces, now_s=now_s)

    def keep_limits(self, namespaces: Iterable[bytes], *, now_s: float) -> None:
        """Evict what is over the quotas of those namespaces and over the budget."""
        if self.evicts:
            self._evicted(self.bounds.evict(self.index, namespaces), now_s=now_s)

    def invalidate(self, digests: Iterable[bytes]) -> int:
        """Forget broken pages and all below them, held or not; return how many."""
        pages = [page for digest in digests for page in self.index.invalidate(digest)]
        self.doomed.add_broken(pages)
        self._tell(ChangeKind.INVALIDATED, pages)
        return len(pages)

    def drop(self, digests: Iterable[bytes]) -> int:
        """Forget pages and all below them without dooming them; return how many."""
        return sum(len(self.index.invalidate(digest)) for digest in digests)

    def evict(self, selection: Selection, *, now_s: float, dry_run: bool) -> Removal:
        """Evict chosen pages, but for held ones and what is above those."""
        chosen = selected(selection, self.tree, now_s)
        going = removable(chosen, self.tree)
        if not dry_run:
            self.index.remove(going)
            self.doomed.add_evicted(going, now_s=now_s)
            self._tell(ChangeKind.DELETED, going[::-1])
        return removal_of(going, num_held_pages=len(chosen) - len(going))

    def set_quota(
        self, namespace: bytes, max_bytes: int, *, now_s: float, dry_run: bool
    ) -> Removal:
        """Bound a namespace, 0 for no limit, and evict what is over it."""
        going = self.bounds.over_quota(self.index, namespace, max_bytes)
        if not dry_run:
            self.bounds.set_quota(namespace, max_bytes)
            self._on_change(
                Change(kind=ChangeKind.QUOTA_SET, namespace=namespace, num_bytes=max_bytes)
            )
            self.keep_limits([namespace], now_s=now_s)
        return removal_of(going, num_held_pages=0)

    def pin(
        self, selection: Selection, *, until_s: float | None, now_s: float, dry_run: bool
    ) -> Amount:
        """Pin chosen pages; an earlier pin of a page is replaced."""
        pages = selected(selection, self.tree, now_s)
        if not dry_run:
            self.pins.add((page.digest for page in pages), until_s)
            self._apply_pins(pages)
            self._tell(ChangeKind.PINNED, pages)
        return amount_of(pages)

    def unpin(self, selection: Selection, *, now_s: float, dry_run: bool) -> Amount:
        """End the pins of chosen pages; with Everything also those that wait for a page."""
        chosen = selected(selection, self.tree, now_s)
        pages = [page for page in chosen if page.pinned]
        if not dry_run:
            everything = isinstance(selection, Everything)
            digests = [digest for digest, _ in self.pins.all()] if everything else []
            self.pins.remove(digests or [page.digest for page in pages])
            self._release_pins(pages, now_s=now_s)
        return amount_of(pages)

    def expire_pins(self, now_s: float) -> None:
        """End the pins whose time is over."""
        ended = (self.tree.get(digest) for digest in self.pins.expire(now_s))
        self._release_pins([page for page in ended if page is not None], now_s=now_s)

    def restore_pins(self, pins: Iterable[tuple[bytes, float | None]], *, now_s: float) -> None:
        """Replace all pins, those of pages that are yet to come included; nobody is told."""
        before = [digest for digest, _ in self.pins.all()]
        self.pins.clear()
        for digest, until_s in pins:
            self.pins.add([digest], until_s)
        for digest in before:
            page = self.tree.get(digest)
            if page is not None and digest not in self.pins:
                self.index.pin(page, pinned=False)
        known = (self.tree.get(digest) for digest, _ in self.pins.all())
        self._apply_pins([page for page in known if page is not None])
        self.keep_limits(self.bounds.quotas, now_s=now_s)

    def _apply_pins(self, pages: Iterable[IndexedPage]) -> None:
        for page in pages:
            if not page.pinned and page.digest in self.pins:
                self.index.pin(page, pinned=True)

    def _release_pins(self, pages: Sequence[IndexedPage], *, now_s: float) -> None:
        for page in pages:
            self.index.pin(page, pinned=False)
        self._tell(ChangeKind.UNPINNED, pages)
        self.keep_limits(dict.fromkeys(page.namespace for page in pages), now_s=now_s)

    def _evicted(self, victims: Sequence[IndexedPage], *, now_s: float) -> None:
        self.num_evicted_pages += len(victims)
        self.doomed.add_evicted(victims, now_s=now_s)
        self._tell(ChangeKind.EVICTED, victims[::-1])

    def _tell(self, kind: ChangeKind, pages: Iterable[IndexedPage]) -> None:
        for change in changes_of(kind, pages):
            self._on_change(change)
