"""Which pages go when room is needed, and in which order. Pure."""

from __future__ import annotations

import collections
import heapq
from collections.abc import Iterator

from chunkmesh.indexed_page import IndexedPage
from chunkmesh.leaf_queue import Key, LeafQueue, Order
from chunkmesh.page_tree import PageTree


def victims(tree: PageTree, leaves: LeafQueue, order: Order) -> Iterator[IndexedPage]:
    """Take pages, the first to go first, until nothing else may go.

    A page's turn comes once everything below it is taken. The leaves among them are taken out of
    the queue; the tree stays as it is. Pages that come and go between two steps may be passed over.
    """
    bared: list[tuple[Key, int, IndexedPage]] = []
    num_taken: collections.Counter[bytes] = collections.Counter()
    serial = 0
    while True:
        page = leaves.pop(before=bared[0][0] if bared else None)
        if page is None:
            if not bared:
                return
            page = heapq.heappop(bared)[2]
        yield page
        parent = tree.parent(page)
        if parent is not None:
            num_taken[parent.digest] += 1
            is_bare = num_taken[parent.digest] == len(tree.children(parent))
            if is_bare and not parent.is_held:
                serial += 1
                heapq.heappush(bared, (order(parent), serial, parent))
