"""The radix tree of stored pages: how they hang together, and walks through them. Pure.

A digest names its page and everything before it, so the tree needs no edges to compare or split:
a dictionary finds a page, and parent digests link it to what is below. A page whose parent is not
(yet) known hangs loose in its namespace and finds its place when the parent comes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from chunkmesh.digest_starts import DigestStarts
from chunkmesh.errors import InvalidRequest
from chunkmesh.indexed_page import IndexedPage
from chunkmesh.remains import Container


class PageTree:
    """Owner of pages and links; what a page counts for is the index's business."""

    def __init__(self) -> None:
        self._pages: dict[bytes, IndexedPage] = {}
        self._children: dict[bytes, dict[bytes, IndexedPage]] = {}
        """Pages by parent, then digest; the parent need not be a known page."""
        self._anchors: dict[bytes, dict[bytes, None]] = {}
        """By namespace: parents of its pages that are no known pages, so that roots hang there."""
        self._starts = DigestStarts()

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page: IndexedPage) -> bool:
        return self._pages.get(page.digest) is page

    def get(self, digest: bytes) -> IndexedPage | None:
        """Return a page if it is known."""
        return self._pages.get(digest)

    def known(self, digests: Iterable[bytes]) -> list[IndexedPage]:
        """Return those of the pages that are known."""
        return [page for digest in digests if (page := self._pages.get(digest)) is not None]

    def digests(self) -> set[bytes]:
        """Return all known pages; the set is the caller's."""
        return set(self._pages)

    def starting_with(self, prefix: bytes) -> tuple[IndexedPage, ...]:
        """Return the pages whose digest begins so; prefix has 4 bytes or more."""
        return tuple(self._pages[digest] for digest in self._starts.find(prefix))

    def parent(self, page: IndexedPage) -> IndexedPage | None:
        """Return the page above, if it is known."""
        return self._pages.get(page.parent)

    def children(self, page: IndexedPage) -> Collection[IndexedPage]:
        """Return the pages right below, in the order in which they came."""
        return self._children.get(page.digest, {}).values()

    def is_leaf(self, page: IndexedPage) -> bool:
        """Whether nothing hangs below."""
        return page.digest not in self._children

    def visible_prefix(self, digests: Iterable[bytes]) -> list[IndexedPage]:
        """Return the leading pages of a prompt that are stored for all layers."""
        get = self._pages.get
        pages: list[IndexedPage] = []
        parent: bytes | None = None
        for digest in digests:
            page = get(digest)
            if page is None or not page.visible or (parent is not None and page.parent != parent):
                break
            pages.append(page)
            parent = digest
        return pages

    def known_prefix(self, digests: Iterable[bytes]) -> Iterator[IndexedPage]:
        """Yield the leading pages of a prompt that are known, partial ones included."""
        parent: bytes | None = None
        for digest in digests:
            page = self._pages.get(digest)
            if page is None or (parent is not None and page.parent != parent):
                return
            yield page
            parent = digest

    def below(self, page: IndexedPage) -> Iterator[IndexedPage]:
        """Yield a page and all below it, parents before children, a branch after the other."""
        pending = [page]
        while pending:
            page = pending.pop()
            yield page
            pending.extend(reversed(self._children.get(page.digest, {}).values()))

    def above(self, page: IndexedPage) -> Iterator[IndexedPage]:
        """Yield the known pages between a page and its root, nearest first."""
        parent = self._pages.get(page.parent)
        while parent is not None:
            yield parent
            parent = self._pages.get(parent.parent)

    def roots(self, namespace: bytes) -> Iterator[IndexedPage]:
        """Yield the pages of a namespace whose parent is no known page.

        As all walks it may be left and taken up again while pages come and go; what came or went
        meanwhile may be in it or not.
        """
        for anchor in tuple(self._anchors.get(namespace, ())):
            if anchor not in self._pages:
                yield from tuple(self._children.get(anchor, {}).values())

    def of_namespace(self, namespace: bytes) -> Iterator[IndexedPage]:
        """Yield its pages, parents before children."""
        for root in self.roots(namespace):
            yield from self.below(root)

    def all_roots(self) -> Iterator[IndexedPage]:
        """Yield the pages whose parent is no known page, a namespace after the other."""
        for namespace in tuple(self._anchors):
            yield from self.roots(namespace)

    def everything(self) -> Iterator[IndexedPage]:
        """Yield all pages, parents before children."""
        for root in self.all_roots():
            yield from self.below(root)

    def insert(self, page: IndexedPage) -> None:
        """Add a page that is not known yet.

        Raises:
            InvalidRequest: it cannot be of its namespace.
        """
        self._check_family(page)
        if page.parent not in self._pages:
            self._anchors.setdefault(page.namespace, {})[page.parent] = None
        if page.digest in self._children:
            self._drop_anchor(page.namespace, page.digest)
        self._pages[page.digest] = page
        self._children.setdefault(page.parent, {})[page.digest] = page
        self._starts.add(page.digest)

    def remove(self, page: IndexedPage) -> IndexedPage | None:
        """Take a leaf out; return its parent if that has become a leaf by it."""
        del self._pages[page.digest]
        self._starts.remove(page.digest)
        siblings = self._children[page.parent]
        del siblings[page.digest]
        if siblings:
            return None
        del self._children[page.parent]
        parent = self._pages.get(page.parent)
        if parent is None:
            self._drop_anchor(page.namespace, page.parent)
        return parent

    def clear(self) -> list[Container]:
        """Forget all pages; return what held them, which is the caller's now."""
        held: list[Container] = [self._pages, self._children, self._anchors, *self._starts.clear()]
        self._pages, self._children, self._anchors = {}, {}, {}
        return held

    def faults(self) -> list[str]:
        """Name what disagrees with the pages; all steps over all pages, for tests."""
        children: dict[bytes, dict[bytes, IndexedPage]] = {}
        anchors: dict[bytes, set[bytes]] = {}
        for page in self._pages.values():
            children.setdefault(page.parent, {})[page.digest] = page
            if page.parent not in self._pages:
                anchors.setdefault(page.namespace, set()).add(page.parent)
        checks = {
            "children": self._children == children,
            "anchors": {name: set(held) for name, held in self._anchors.items()} == anchors,
            "starts": self._starts.all() == self._pages.keys(),
            "digests": all(page.digest == digest for digest, page in self._pages.items()),
            "families": all(
                page.namespace == other.namespace
                for page in self._pages.values()
                for other in self.children(page)
            ),
            "reach": len(self._pages) == sum(1 for _ in self.everything()),
        }
        return [name for name, holds in checks.items() if not holds]

    def _check_family(self, page: IndexedPage) -> None:
        if page.digest == page.parent or (
            page.digest in self._children
            and any(above.parent == page.digest for above in self.above(page))
        ):
            raise InvalidRequest(f"page {page.digest.hex()} hangs below itself", field="pages")
        for relative in (
            self._pages.get(page.parent),
            next(iter(self._children.get(page.parent, {}).values()), None),
            next(iter(self._children.get(page.digest, {}).values()), None),
        ):
            if relative is not None and relative.namespace != page.namespace:
                raise InvalidRequest(
                    f"page {page.digest.hex()} of namespace {page.namespace.hex()} hangs together "
                    f"with one of {relative.namespace.hex()}",
                    field="namespace",
                )

    def _drop_anchor(self, namespace: bytes, anchor: bytes) -> None:
        anchors = self._anchors[namespace]
        del anchors[anchor]
        if not anchors:
            del self._anchors[namespace]
