"""Index of stored pages: which leading pages of a prompt are stored for all layers. Pure.

A digest names its page and everything before it, so the radix tree needs no edges to compare: a
dictionary finds a page, and parent digests link it to what is below. A page whose parent is not
(yet) known is kept and becomes reachable when the parent comes. Eviction is least recently used,
leaves first. One owner, one thread.
Source: the prefix tree and its lock counts in SGLang's RadixAttention
(https://lmsys.org/blog/2024-01-17-sglang/).
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Sequence

from chunkmesh.coverage import Coverage
from chunkmesh.errors import InvalidRequest, InvariantViolated


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class _Page:
    """A stored page; belongs to the index, or is detached once removed."""

    digest: bytes
    parent: bytes
    model_layers: int
    layers: int = 0
    """Mask of stored layers; visible when all model_layers bits are set."""
    num_bytes: int = 0
    locks: int = 0
    """Live PageLocks that hold it."""
    num_hits: int = 0
    last_used: int = 0
    """Tick of the last match or cover."""
    queued: bool = False
    """Whether it stands in the queue of leaves."""

    @property
    def visible(self) -> bool:
        return self.layers == (1 << self.model_layers) - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageLock:
    """Keeps the pages of one match, the last one included, from eviction until unlocked."""

    pages: tuple[_Page, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageInfo:
    """State of one page; of an unknown one too."""

    layers: int
    """Mask of stored layers, 0 if unknown."""
    visible: bool
    num_hits: int
    """Matches that used it."""


class PrefixIndex:
    """Owner of the tree."""

    def __init__(self) -> None:
        self._pages: dict[bytes, _Page] = {}
        self._children: dict[bytes, set[bytes]] = {}
        """Digests of pages by parent digest; the parent need not be a known page."""
        self._leaves: list[tuple[int, int, _Page]] = []
        """Heap of (last_used when queued, serial, page); holds every unlocked leaf, once."""
        self._tick = 0
        self._serial = 0
        self.num_pages = 0
        """Visible pages."""
        self.num_bytes = 0
        """Of all pages, partial ones included."""

    @property
    def num_partial_pages(self) -> int:
        """Pages that lack a layer."""
        return len(self._pages) - self.num_pages

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._pages

    def digests(self) -> frozenset[bytes]:
        """Return all known pages, partial ones included."""
        return frozenset(self._pages)

    def peek(self, digests: Iterable[bytes]) -> int:
        """Count the leading visible pages of a prompt; changes nothing."""
        return len(self._walk(digests))

    def match(self, digests: Iterable[bytes]) -> int:
        """Count the leading visible pages of a prompt as used now."""
        pages = self._walk(digests)
        self._tick += 1
        for page in pages:
            page.last_used = self._tick
            page.num_hits += 1
        return len(pages)

    def lock(self, digests: Sequence[bytes]) -> PageLock:
        """Lock known pages against eviction; invalidation still takes them."""
        pages = tuple(self._pages[digest] for digest in digests)
        for page in pages:
            page.locks += 1
        return PageLock(pages=pages)

    def unlock(self, lock: PageLock) -> None:
        """End a lock; once a lock."""
        for page in lock.pages:
            if page.locks <= 0:
                raise InvariantViolated(f"page {page.digest.hex()} unlocked more than locked")
            page.locks -= 1
            self._queue_leaf(page)

    def cover(self, digest: bytes, parent: bytes, coverage: Coverage) -> bool:
        """Record stored layers; return whether the page became visible by it.

        Raises:
            InvalidRequest: it contradicts what is known of the page.
        """
        page = self._pages.get(digest) or self._insert(digest, parent, coverage.model_layers)
        if (page.parent, page.model_layers) != (parent, coverage.model_layers):
            raise InvalidRequest(
                f"page {digest.hex()} of {page.model_layers} layers after {page.parent.hex()} was "
                f"stored before; now {coverage.model_layers} layers after {parent.hex()} are named",
                field="pages",
            )
        was_visible = page.visible
        added_bytes = (coverage.layers & ~page.layers).bit_count() * coverage.layer_bytes
        page.layers |= coverage.layers
        page.num_bytes += added_bytes
        self.num_bytes += added_bytes
        self._tick += 1
        page.last_used = self._tick
        became_visible = page.visible and not was_visible
        self.num_pages += became_visible
        return became_visible

    def info(self, digest: bytes) -> PageInfo:
        """Return the state of one page."""
        page = self._pages.get(digest)
        if page is None:
            return PageInfo(layers=0, visible=False, num_hits=0)
        return PageInfo(layers=page.layers, visible=page.visible, num_hits=page.num_hits)

    def invalidate(self, digest: bytes) -> tuple[bytes, ...]:
        """Forget a page and all below it, locked or not; return their digests, parents first."""
        removed: list[bytes] = []
        pending = [digest]
        while pending:
            page = self._pages.get(pending.pop())
            if page is not None:
                pending.extend(self._children.get(page.digest, ()))
                self._remove(page)
                removed.append(page.digest)
        return tuple(removed)

    def evict(self, num_bytes: int) -> tuple[bytes, ...]:
        """Forget unlocked leaves, least recently used first, until num_bytes are free.

        Returns the victims in order, children before parents; fewer bytes if nothing else is left.
        """
        victims: list[bytes] = []
        target_bytes = self.num_bytes - num_bytes
        while self.num_bytes > target_bytes and self._leaves:
            queued_at, _, page = heapq.heappop(self._leaves)
            page.queued = False
            if page.last_used != queued_at:
                self._queue_leaf(page)
            elif self._is_evictable(page):
                self._remove(page)
                victims.append(page.digest)
        return tuple(victims)

    def clear(self) -> None:
        """Forget every page; locks of forgotten pages may still be unlocked."""
        self._pages.clear()
        self._children.clear()
        self._leaves.clear()
        self.num_pages = 0
        self.num_bytes = 0

    def check_integrity(self) -> None:
        """Compare all counts and links with the pages themselves; for tests and debugging.

        Raises:
            InvariantViolated: they disagree.
        """
        pages = self._pages.values()
        children: dict[bytes, set[bytes]] = {}
        for page in pages:
            children.setdefault(page.parent, set()).add(page.digest)
        queued = {id(page) for _, _, page in self._leaves}
        checks = {
            "bytes": self.num_bytes == sum(page.num_bytes for page in pages),
            "visible": self.num_pages == sum(page.visible for page in pages),
            "children": self._children == children,
            "locks": all(page.locks >= 0 for page in pages),
            "queue": all(id(page) in queued for page in pages if self._is_evictable(page)),
            "queue once": len(queued) == len(self._leaves),
        }
        broken = [name for name, holds in checks.items() if not holds]
        if broken:
            raise InvariantViolated(f"prefix index: wrong {', '.join(broken)}")

    def _walk(self, digests: Iterable[bytes]) -> list[_Page]:
        pages: list[_Page] = []
        parent: bytes | None = None
        for digest in digests:
            page = self._pages.get(digest)
            if page is None or not page.visible or (parent is not None and page.parent != parent):
                break
            pages.append(page)
            parent = digest
        return pages

    def _insert(self, digest: bytes, parent: bytes, model_layers: int) -> _Page:
        if digest == parent:
            raise InvalidRequest(f"page {digest.hex()} is its own parent", field="pages")
        page = _Page(digest=digest, parent=parent, model_layers=model_layers)
        self._pages[digest] = page
        self._children.setdefault(parent, set()).add(digest)
        self._queue_leaf(page)
        return page

    def _remove(self, page: _Page) -> None:
        del self._pages[page.digest]
        siblings = self._children[page.parent]
        siblings.discard(page.digest)
        if not siblings:
            del self._children[page.parent]
            parent = self._pages.get(page.parent)
            if parent is not None:
                self._queue_leaf(parent)
        self.num_bytes -= page.num_bytes
        self.num_pages -= page.visible

    def _is_evictable(self, page: _Page) -> bool:
        return (
            page.locks == 0
            and page.digest not in self._children
            and self._pages.get(page.digest) is page
        )

    def _queue_leaf(self, page: _Page) -> None:
        if not page.queued and self._is_evictable(page):
            page.queued = True
            self._serial += 1
            heapq.heappush(self._leaves, (page.last_used, self._serial, page))
