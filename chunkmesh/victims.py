"""Which pages go when room is needed. Pure."""

from __future__ import annotations

import collections
import heapq

from chunkmesh.indexed_page import IndexedPage
from chunkmesh.leaf_queue import Key, LeafQueue, Order
from chunkmesh.page_tree import PageTree


def take_victims(
    tree: PageTree, leaves: LeafQueue, order: Order, num_bytes: int
) -> tuple[IndexedPage, ...]:
    """Take pages, the first to go first, until they come to num_bytes or nothing else may go.

    A page's turn comes once everything below it is taken. The leaves among them are taken out of
    the queue; the tree stays as it is.
    """
    victims: list[IndexedPage] = []
    bared: list[tuple[Key, int, IndexedPage]] = []
    num_taken: collections.Counter[bytes] = collections.Counter()
    while num_bytes > 0:
        page = leaves.pop(before=bared[0][0] if bared else None)
        if page is None:
            if not bared:
                break
            page = heapq.heappop(bared)[2]
        victims.append(page)
        num_bytes -= page.num_bytes
        parent = tree.parent(page)
        if parent is not None:
            num_taken[parent.digest] += 1
            is_bare = num_taken[parent.digest] == len(tree.children(parent))
            if is_bare and not parent.is_held:
                heapq.heappush(bared, (order(parent), len(victims), parent))
    return tuple(victims)
