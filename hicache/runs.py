"""The tree as people look at it: runs of pages between which nothing branches off. Pure."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from chunkmesh.indexed_page import IndexedPage
from chunkmesh.page_tree import PageTree
from hicache.selection import named

RunOrder: TypeAlias = Literal["tree", "hits", "recent", "bytes"]
"""Parents first, a branch after the other; most hits; used last; most bytes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Pages that follow each other with nothing branching off between them."""

    namespace: bytes
    first_digest: bytes
    last_digest: bytes
    first_page: int
    """Index of the first page in its prompt; at least so much if nobody knows what is missing."""
    num_pages: int
    depth: int
    """Runs above it among those that were asked for."""
    num_children: int
    """Runs that branch off behind its last page."""
    num_bytes: int
    """Values only."""
    layers: int
    """Mask of layers that all its pages have."""
    visible: bool
    """Whether a request may use all of it."""
    num_hits: int
    """Matches of its most used page."""
    idle_s: float
    """Time since a match or a store touched it."""
    num_leased_pages: int
    num_pinned_pages: int
    priority: int
    """Highest of its pages."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Where a run begins."""

    page: IndexedPage
    first_page: int
    depth: int
    reachable: bool
    """Whether a request may use all that is above."""


def tops_of(
    tree: PageTree, *, namespace: bytes | None, below: bytes | None
) -> Iterator[IndexedPage]:
    """Yield the pages at which a listing begins: one, or the roots of a namespace, or all roots.

    Raises:
        NotFound, InvalidRequest: below names no page or several, or is too short or too long.
    """
    if below is not None:
        page = named(below, tree)
        if namespace in {None, page.namespace}:
            yield page
    elif namespace is not None:
        yield from tree.roots(namespace)
    else:
        yield from tree.all_roots()


class PickedRuns:
    """The first runs in an order, out of all that are added in the order of the tree."""

    def __init__(self, *, limit: int, order: RunOrder) -> None:
        """Keep at most limit runs, >= 1."""
        self._limit = limit
        self._order: RunOrder = order
        self._num_added = 0
        self._kept: list[tuple[float, int, Run]] = []
        """A heap, the last one in the order on top."""

    def add(self, run: Run) -> None:
        """Take a run into account."""
        entry = (-self._rank(run), -self._num_added, run)
        self._num_added += 1
        if len(self._kept) < self._limit:
            heapq.heappush(self._kept, entry)
        else:
            heapq.heappushpop(self._kept, entry)

    @property
    def num_left_off(self) -> int:
        """Runs that the limit cut off, as long as none was taken."""
        return self._num_added - len(self._kept)

    def taking(self) -> Iterator[Run]:
        """Yield the runs, the last in their order first; afterwards there is none."""
        while self._kept:
            yield heapq.heappop(self._kept)[2]

    def _rank(self, run: Run) -> float:
        match self._order:
            case "tree":
                return 0.0
            case "hits":
                return -run.num_hits
            case "recent":
                return run.idle_s
            case "bytes":
                return -run.num_bytes


def runs_below(
    tree: PageTree, tops: Iterable[IndexedPage], *, max_depth: int, now_s: float
) -> Iterator[Run]:
    """Yield the runs of pages and all below them, parents first; max_depth 0 means all.

    Takes pages of which none is below another. Pages may come and go between two runs.
    """
    for top in tops:
        pending = [_start(tree, top)]
        while pending:
            start = pending.pop()
            pages = _pages(tree, start.page)
            children = tuple(tree.children(pages[-1]))
            run = _run(pages, start, num_children=len(children), now_s=now_s)
            if max_depth == 0 or start.depth + 1 < max_depth:
                below = [
                    _Start(
                        page=page,
                        first_page=start.first_page + len(pages),
                        depth=start.depth + 1,
                        reachable=run.visible,
                    )
                    for page in children
                ]
                pending.extend(reversed(below))
            yield run


def _pages(tree: PageTree, page: IndexedPage) -> list[IndexedPage]:
    pages = [page]
    while len(children := tree.children(pages[-1])) == 1:
        pages.extend(children)
    return pages


def _run(pages: list[IndexedPage], start: _Start, *, num_children: int, now_s: float) -> Run:
    layers = pages[0].layers
    for page in pages:
        layers &= page.layers
    return Run(
        namespace=start.page.namespace,
        first_digest=pages[0].digest,
        last_digest=pages[-1].digest,
        first_page=start.first_page,
        num_pages=len(pages),
        depth=start.depth,
        num_children=num_children,
        num_bytes=sum(page.num_bytes for page in pages),
        layers=layers,
        visible=start.reachable and all(page.visible for page in pages),
        num_hits=max(page.num_hits for page in pages),
        idle_s=max(0.0, now_s - max(page.used_s for page in pages)),
        num_leased_pages=sum(page.locks > 0 for page in pages),
        num_pinned_pages=sum(page.pinned for page in pages),
        priority=max(page.priority for page in pages),
    )


def _start(tree: PageTree, page: IndexedPage) -> _Start:
    above = list(tree.above(page))
    root = above[-1] if above else page
    return _Start(
        page=page,
        first_page=_page_index(page, above),
        depth=0,
        reachable=root.parent == root.namespace and all(other.visible for other in above),
    )


def _page_index(page: IndexedPage, above: list[IndexedPage]) -> int:
    """Return a page's index in its prompt; if nobody knows, as if one page were missing."""
    for distance, other in enumerate(itertools.chain([page], above)):
        if other.page_index is not None:
            return other.page_index + distance
    return len(above) + 1
