"""Full pages on their way to the prefix cache, in the background. Pure.

A page is storable when every stage has acknowledged the microbatch that filled its last slot,
whether its tokens are prompt or output and whether its request still lives. It is pinned until
every stage has ended the store. When too many stores are outstanding, pages wait for their
request's next microbatch; after its last one they are not stored, which is no fault but a later
miss. Nor are those that were in work when all pages were forgotten or some were distrusted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from chunkmesh.errors import InvariantViolated
from scheduler.actions import CommitPages, PageToStore, SendStore
from scheduler.pages import PageAllocator
from scheduler.part import Part


@dataclasses.dataclass(slots=True, kw_only=True)
class _Store:
    """One store on all stages."""

    pages: tuple[PageToStore, ...]
    """Pinned."""
    waiting: set[int]
    """Stages that have not ended it; never empty."""
    withdrawn: set[int] = dataclasses.field(default_factory=set)
    """Indices of pages that are not to be used after all."""


class Stores:
    """The stores of one route."""

    def __init__(
        self, *, pages: PageAllocator, num_stages: int, page_tokens: int, max_outstanding: int
    ) -> None:
        """Begin with no store; at most max_outstanding are open at once."""
        self._pages = pages
        self._num_stages = num_stages
        self._page_tokens = page_tokens
        self._max_outstanding = max_outstanding
        self._next_id = 0
        self._open: dict[int, _Store] = {}

    def __len__(self) -> int:
        return len(self._open)

    def start(self, parts: tuple[Part, ...]) -> SendStore | None:
        """Store what a complete microbatch has filled, if anything and if there is room."""
        if len(self._open) >= self._max_outstanding:
            return None
        pages: list[PageToStore] = []
        for part in parts:
            pages += self._take_filled(part)
        if not pages:
            return None
        store_id, self._next_id = self._next_id, self._next_id + 1
        self._pages.pin([page.page_id for page in pages])
        self._open[store_id] = _Store(pages=tuple(pages), waiting=set(range(self._num_stages)))
        return SendStore(store_id=store_id, pages=tuple(pages))

    def stored(self, stage: int, store_id: int, indices: tuple[int, ...]) -> list[CommitPages]:
        """Take one stage's end of a store; return what HiCache has to know. A repeat is dropped.

        Raises:
            InvariantViolated: no such store was ever sent, or an index is out of range.
        """
        if not 0 <= store_id < self._next_id:
            raise InvariantViolated(f"store {store_id} was never sent")
        store = self._open.get(store_id)
        if store is None or stage not in store.waiting:
            return []
        if any(not 0 <= index < len(store.pages) for index in indices):
            raise InvariantViolated(f"store {store_id} has {len(store.pages)} pages, not {indices}")
        store.waiting.remove(stage)
        if not store.waiting:
            del self._open[store_id]
            self._pages.release([page.page_id for page in store.pages])
        return _commits(stage, store, set(indices) - store.withdrawn)

    def withdraw(self, digests: Collection[bytes]) -> None:
        """Let HiCache not know of these pages, whatever the stages have written or will write."""
        for store in self._open.values():
            store.withdrawn.update(
                index for index, page in enumerate(store.pages) if page.digest in digests
            )

    def _take_filled(self, part: Part) -> list[PageToStore]:
        """Return the full pages of a request that no store has had, and count them as given."""
        request = part.request
        if request.generation != self._pages.generation:
            return []
        first, last = request.num_pages_stored, part.end // self._page_tokens
        request.num_pages_stored = max(first, last)
        return [
            PageToStore(
                namespace=request.spec.namespace,
                digest=request.page_digest(index, self._page_tokens),
                parent=request.page_digest(index - 1, self._page_tokens),
                page_index=index,
                page_id=request.page_ids[index],
            )
            for index in range(first, last)
        ]


def _commits(stage: int, store: _Store, indices: set[int]) -> list[CommitPages]:
    """Group what a stage wrote by namespace, in order."""
    by_namespace: dict[bytes, list[PageToStore]] = {}
    for index in sorted(indices):
        page = store.pages[index]
        by_namespace.setdefault(page.namespace, []).append(page)
    return [
        CommitPages(stage=stage, namespace=namespace, pages=tuple(pages))
        for namespace, pages in by_namespace.items()
    ]
