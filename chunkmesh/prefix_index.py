"""Index of stored pages: which leading pages of a prompt are stored for all layers. Pure.

Counts, locks and evicts what the page tree links. Eviction takes leaves, in the order it was given;
what a lock or a pin holds stays, and so does everything above it. One owner, one thread.
Source: the prefix tree and its lock counts in SGLang's RadixAttention
(https://lmsys.org/blog/2024-01-17-sglang/).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from chunkmesh.coverage import Coverage
from chunkmesh.errors import InvalidRequest, InvariantViolated
from chunkmesh.indexed_page import IndexedPage, PageInfo, PageLock, PagePlace
from chunkmesh.leaf_queue import LeafQueue, Order, least_recently_used
from chunkmesh.namespace_counts import CountsByNamespace, NamespaceCounts
from chunkmesh.own_leaves import OwnLeaves
from chunkmesh.page_tree import PageTree
from chunkmesh.remains import Container
from chunkmesh.victims import victims


class PrefixIndex:
    """Owner of pages, counts and the order of eviction."""

    def __init__(self, order: Order = least_recently_used) -> None:
        """Take the order of eviction."""
        self._order = order
        self._tree = PageTree()
        self._leaves = self._new_queue()
        self._own_leaves = OwnLeaves(self._new_queue, self._leaves)
        self._namespaces = CountsByNamespace()
        self._tick = 0
        self.num_pages = 0
        """Visible pages."""
        self.num_bytes = 0
        """Of all pages, partial ones included."""

    @property
    def tree(self) -> PageTree:
        """How pages hang together; to look at only."""
        return self._tree

    @property
    def namespaces(self) -> Mapping[bytes, NamespaceCounts]:
        """Counts of each namespace that has pages; to look at only."""
        return self._namespaces.all

    @property
    def num_partial_pages(self) -> int:
        """Pages that lack a layer."""
        return len(self._tree) - self.num_pages

    def __contains__(self, digest: bytes) -> bool:
        return self._tree.get(digest) is not None

    def peek(self, digests: Iterable[bytes]) -> int:
        """Count the leading visible pages of a prompt; changes nothing."""
        return len(self._tree.visible_prefix(digests))

    def match(self, digests: Iterable[bytes], *, now_s: float = 0.0) -> list[IndexedPage]:
        """Return the leading visible pages of a prompt and note that they are used now."""
        pages = self._tree.visible_prefix(digests)
        self._tick += 1
        for page in pages:
            page.last_used = self._tick
            page.used_s = now_s
            page.num_hits += 1
        if pages:
            self._namespaces.hit(pages[0].namespace)
        return pages

    def info(self, digest: bytes) -> PageInfo:
        """Return the state of one page."""
        page = self._tree.get(digest)
        if page is None:
            return PageInfo(layers=0, visible=False, num_hits=0)
        return PageInfo(layers=page.layers, visible=page.visible, num_hits=page.num_hits)

    def lock(self, pages: Iterable[IndexedPage]) -> PageLock:
        """Lock pages against eviction; invalidation still takes them."""
        lock = PageLock(pages=tuple(pages))
        for page in lock.pages:
            page.locks += 1
        return lock

    def unlock(self, lock: PageLock) -> None:
        """End a lock; once a lock."""
        for page in lock.pages:
            if page.locks <= 0:
                raise InvariantViolated(f"page {page.digest.hex()} unlocked more than locked")
            page.locks -= 1
            self._queue(page)

    def pin(self, page: IndexedPage, *, pinned: bool) -> None:
        """Hold a known page, or hold it no more."""
        counts = self.namespaces[page.namespace]
        counts.drop(page)
        page.pinned = pinned
        counts.add(page)
        self._queue(page)

    def cover(
        self, place: PagePlace, coverage: Coverage, *, now_s: float = 0.0, is_use: bool = True
    ) -> tuple[IndexedPage, bool]:
        """Record stored layers; return the page, and whether it became visible by it.

        If that is no use of the page, one that is known keeps its place in the order of eviction.

        Raises:
            InvalidRequest: it contradicts what is known of the page or of its namespace.
        """
        page = self._tree.get(place.digest)
        is_new = page is None
        if page is None:
            page = self._insert(place, coverage.model_layers)
        _check_same(page, place, coverage)
        was_visible = page.visible
        added_bytes = (coverage.layers & ~page.layers).bit_count() * coverage.layer_bytes
        counts = self.namespaces[page.namespace]
        counts.drop(page)
        page.layers |= coverage.layers
        page.visible = page.layers == (1 << page.model_layers) - 1
        page.num_bytes += added_bytes
        counts.add(page)
        page.priority = max(page.priority, place.priority)
        if is_new or is_use:
            self._tick += 1
            page.last_used = self._tick
            page.used_s = now_s
        became_visible = page.visible and not was_visible
        self.num_bytes += added_bytes
        self.num_pages += became_visible
        return page, became_visible

    def remove(self, pages: Iterable[IndexedPage]) -> None:
        """Forget known pages, held or not, children before parents, and no parent alone."""
        for page in pages:
            parent = self._tree.remove(page)
            if self._namespaces.drop(page):
                self._own_leaves.drop(page.namespace)
            self.num_bytes -= page.num_bytes
            self.num_pages -= page.visible
            if parent is not None:
                self._queue(parent)

    def invalidate(self, digest: bytes) -> tuple[IndexedPage, ...]:
        """Forget a page and all below it, held or not; return them, parents first."""
        page = self._tree.get(digest)
        if page is None:
            return ()
        pages = tuple(self._tree.below(page))
        self.remove(reversed(pages))
        return pages

    def gather_leaves(self, namespace: bytes, most_pages: int) -> bool:
        """Look for leaves of a namespace; return whether evict can take them with no more ado.

        Each call looks at up to most_pages leaves, until all were looked at once.
        """
        is_known = namespace in self._namespaces.all
        return not is_known or self._own_leaves.gather(namespace, most_pages) is not None

    def evict(
        self, num_bytes: int, *, namespace: bytes | None = None, most_pages: int | None = None
    ) -> tuple[IndexedPage, ...]:
        """Forget leaves that nobody holds, in order, until num_bytes are free, or most_pages.

        Only those of one namespace if it is named. Returns the victims in order, children before
        parents; fewer bytes if nothing else may go.
        """
        if namespace is not None and namespace not in self._namespaces.all:
            return ()
        leaves = self._leaves if namespace is None else self._own_leaves.gather(namespace)
        assert leaves is not None, "all pages were looked at"
        going: list[IndexedPage] = []
        taken = victims(self._tree, leaves, self._order)
        while num_bytes > 0 and len(going) != most_pages:
            page = next(taken, None)
            if page is None:
                break
            going.append(page)
            num_bytes -= page.num_bytes
        self.remove(going)
        return tuple(going)

    def evicting(self, num_bytes: int, *, namespace: bytes) -> Iterator[IndexedPage | None]:
        """Walk through what evict would take of a namespace, in order; None is a step between.

        Nothing is changed; pages may come and go between two steps.
        """
        leaves = self._new_queue()
        for page in self._leaves.pages():
            if page.namespace == namespace:
                leaves.push(page)
            yield None
        taken = victims(self._tree, leaves, self._order)
        while num_bytes > 0 and (victim := next(taken, None)) is not None:
            num_bytes -= victim.num_bytes
            yield victim

    def clear(self) -> list[Container]:
        """Forget every page; locks of forgotten pages may still be unlocked.

        Return what held them, which is the caller's now.
        """
        held = [*self._tree.clear(), *self._leaves.clear()]
        self._namespaces.clear()
        self._own_leaves = OwnLeaves(self._new_queue, self._leaves)
        self.num_pages = 0
        self.num_bytes = 0
        return held

    def check_integrity(self) -> None:
        """Compare all counts and links with the pages themselves; for tests and debugging.

        Raises:
            InvariantViolated: they disagree.
        """
        pages = list(self._tree.everything())
        checks = {
            "bytes": self.num_bytes == sum(page.num_bytes for page in pages),
            "visible": self.num_pages == sum(page.visible for page in pages),
            "visibility": all(
                page.visible == (page.layers == (1 << page.model_layers) - 1) for page in pages
            ),
            "namespaces": self._namespaces.agree(pages),
            "locks": all(page.locks >= 0 for page in pages),
            "queue": all(page in self._leaves for page in pages if self._may_go(page)),
            "own queues": not any(
                self._own_leaves.lacks(page) for page in pages if self._may_go(page)
            ),
        }
        broken = [name for name, holds in checks.items() if not holds] + self._tree.faults()
        if broken:
            raise InvariantViolated(f"prefix index: wrong {', '.join(broken)}")

    def _insert(self, place: PagePlace, model_layers: int) -> IndexedPage:
        parent = self._tree.get(place.parent)
        page_index = place.page_index
        if place.parent == place.namespace:
            page_index = 0
        elif parent is not None and parent.page_index is not None:
            page_index = parent.page_index + 1
        page = IndexedPage(
            namespace=place.namespace,
            digest=place.digest,
            parent=place.parent,
            model_layers=model_layers,
            page_index=page_index,
            priority=place.priority,
        )
        self._namespaces.add(page)
        try:
            self._tree.insert(page)
        except InvalidRequest:
            self._namespaces.drop(page)
            raise
        self._queue(page)
        return page

    def _may_go(self, page: IndexedPage) -> bool:
        return not page.is_held and page in self._tree and self._tree.is_leaf(page)

    def _new_queue(self) -> LeafQueue:
        return LeafQueue(self._order, self._may_go)

    def _queue(self, page: IndexedPage) -> None:
        self._leaves.push(page)
        self._own_leaves.push(page)


def _check_same(page: IndexedPage, place: PagePlace, coverage: Coverage) -> None:
    known = (page.parent, page.namespace, page.model_layers)
    if known != (place.parent, place.namespace, coverage.model_layers):
        raise InvalidRequest(
            f"page {page.digest.hex()} of {page.model_layers} layers after {page.parent.hex()} was "
            f"stored before; now {coverage.model_layers} layers after {place.parent.hex()} are "
            f"named, in namespace {place.namespace.hex()}",
            field="pages",
        )
