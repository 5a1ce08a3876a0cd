"""Leaves by namespace, for those of which pages are evicted on their own. Pure.

They are looked for when they are first needed, some pages at a time; what changes meanwhile is
told.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from chunkmesh.indexed_page import IndexedPage
from chunkmesh.leaf_queue import LeafQueue


class OwnLeaves:
    """Owner of a queue for each such namespace."""

    def __init__(self, new_queue: Callable[[], LeafQueue], leaves: LeafQueue) -> None:
        """Take what makes a queue, and the leaves of all namespaces."""
        self._new_queue = new_queue
        self._leaves = leaves
        self._queues: dict[bytes, LeafQueue] = {}
        self._unseen: dict[bytes, Iterator[IndexedPage]] = {}
        """Leaves that were not looked at, for namespaces that are not known as a whole."""

    def push(self, page: IndexedPage) -> None:
        """Add a page that may have become a leaf, if its namespace has a queue."""
        queue = self._queues.get(page.namespace)
        if queue is not None:
            queue.push(page)

    def gather(self, namespace: bytes, most_pages: int | None = None) -> LeafQueue | None:
        """Look at up to most_pages more leaves; return the queue once all were looked at."""
        if namespace not in self._queues:
            self._queues[namespace] = self._new_queue()
            self._unseen[namespace] = self._leaves.pages()
        queue = self._queues[namespace]
        if namespace in self._unseen:
            num_seen = 0
            for page in itertools.islice(self._unseen[namespace], most_pages):
                num_seen += 1
                if page.namespace == namespace:
                    queue.push(page)
            if num_seen == most_pages:
                return None
            del self._unseen[namespace]
        return queue

    def drop(self, namespace: bytes) -> None:
        """Forget the queue of a namespace without pages."""
        self._queues.pop(namespace, None)
        self._unseen.pop(namespace, None)

    def lacks(self, page: IndexedPage) -> bool:
        """Whether a leaf's namespace is known as a whole, but without it."""
        is_whole = page.namespace in self._queues and page.namespace not in self._unseen
        return is_whole and page not in self._queues[page.namespace]
