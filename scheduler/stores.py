"""Full pages on their way to the prefix cache, in the background. Pure.

A page is storable when every stage has acknowledged the microbatch that filled its last slot,
whether its tokens are prompt or output and whether its request still lives. Which are stored, and
when, says the policy:

- write_through: all of them, at once.
- write_through_selective: those that a later request has found on the devices or in host memory.
- write_back: those that neither tier has room for any more, and all when the scheduler drains.

A page is pinned until every stage has ended the store, unless it was evicted: then the stages copy
it at its place in their streams. When too many stores are outstanding, pages wait for their
request's next microbatch; after its last one they are not stored, nor is what is evicted then,
which is no fault but a later miss. Nor are those that were in work when all pages were forgotten or
some were distrusted.
Source: the write policies of SGLang's HiCache
(https://docs.sglang.ai/advanced_features/hicache_design.html).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence

from chunkmesh.errors import InvariantViolated
from scheduler.actions import CommitPages, PageToStore, SendStore, Tier
from scheduler.cache_counts import CacheCounts
from scheduler.engine_config import EngineConfig
from scheduler.part import Part
from scheduler.request import Request
from scheduler.tiers import Tiers

FLUSH_BYTES = 32 << 20
"""About what a store writes on one stage while the scheduler drains."""
MAX_FLUSHING = 4
"""Stores that are open then."""


@dataclasses.dataclass(slots=True, kw_only=True)
class _Store:
    """One store on all stages."""

    order: SendStore
    is_pinned: bool
    """Whether its pages are held until all stages have ended it; else they are gone."""
    waiting: set[int]
    """Stages that have not ended it; never empty."""
    lacking: set[int] = dataclasses.field(default_factory=set)
    """Indices of pages that some stage has not written."""
    withdrawn: set[int] = dataclasses.field(default_factory=set)
    """Indices of pages that are not to be used after all."""


class Stores:
    """The stores of one route."""

    def __init__(
        self,
        *,
        epoch: int,
        tiers: Tiers,
        page_bytes: Sequence[int],
        config: EngineConfig,
        counts: CacheCounts,
    ) -> None:
        """Begin with no store; page_bytes is what a page takes on each stage, 0 if unknown."""
        self._epoch = epoch
        self._tiers = tiers
        self._num_stages = len(page_bytes)
        self._pages_at_once = max(1, FLUSH_BYTES // max(*page_bytes, 1))
        self._page_tokens = config.page_tokens
        self._max_outstanding = config.max_outstanding_stores
        self._policy = config.write_policy
        self.counts = counts
        """Where what was not written back is counted."""
        self._next_id = 0
        self._open: dict[int, _Store] = {}
        self._to_flush: dict[bytes, None] = {}
        """What is still to be written in the background, not for a microbatch; each page once."""
        self.is_failing = False
        """Whether pages of the store that ended last were not written."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_flushing(self) -> bool:
        """Whether pages wait to be written in the background."""
        return bool(self._to_flush)

    @property
    def num_unwritten(self) -> int:
        """Pages that are not written yet, as far as they are going to be."""
        return len(self._to_flush) + sum(len(store.order.pages) for store in self._open.values())

    def begin(self, request: Request) -> None:
        """Note what Redis has of an output whose prefill begins."""
        if self._policy == "write_through":
            return
        num_known, num_asked = request.num_pages_stored, request.most_hit_pages(self._page_tokens)
        if request.was_matched:
            in_work = self._in_work()
            lacking = [each for each in request.digests[num_known:num_asked] if each not in in_work]
            self._tiers.mark_stored(request.digests[:num_known])
            self._tiers.unmark_stored(lacking)
        request.num_pages_stored = 0

    def start(self, parts: tuple[Part, ...]) -> SendStore | None:
        """Store what a complete microbatch has made storable, if anything and if there is room.

        What several outputs have found on the devices, and Redis lacks, is written once.
        """
        if len(self._open) >= self._max_outstanding:
            return None
        in_work = self._in_work()
        filled = {page.digest: page for part in parts for page in self._take_filled(part)}
        pages = [page for digest, page in filled.items() if digest not in in_work]
        if not pages:
            return None
        self._tiers.device.pin([page.page_id for page in pages])
        return self._open_store(pages, "device")

    def gone(self) -> list[SendStore]:
        """Write back what the last allocations have left no tier with; for before what they bring.

        With the other policies nothing is written.
        """
        from_device, from_host = self._tiers.take_gone(self.counts)
        if self._policy != "write_back":
            return []
        orders = []
        gone: tuple[tuple[Tier, list[PageToStore]], ...] = (
            ("device", from_device),
            ("host", from_host),
        )
        for tier, pages in gone:
            if pages and len(self._open) < self._max_outstanding:
                orders.append(self._open_store(pages, tier, in_turn=True, is_pinned=False))
            else:
                self.counts.unwritten_pages += len(pages)
        return orders

    def flush(self) -> None:
        """Begin to write all that only the tiers have, the last used first; see go_on."""
        if self._policy != "write_back" or not self._max_outstanding:
            return
        device, host = self._tiers.device.cached.rested(), self._tiers.host.rested()
        known = {page.digest for page in device}
        pages = device + [page for page in host if page.digest not in known]
        lacking = (page.digest for page in pages if not self._tiers.is_stored(page.digest))
        self._to_flush |= dict.fromkeys(lacking)

    def believed(self, digests: Sequence[bytes]) -> list[bytes]:
        """Return which of the workers' pages Redis should have, but for those being written now."""
        if not self._max_outstanding:
            return []
        in_work = self._in_work()
        return [
            each
            for each in digests
            if each not in in_work
            and (self._policy == "write_through" or self._tiers.is_stored(each))
        ]

    def restore(self, digests: Sequence[bytes]) -> None:
        """Note that Redis has lost pages; begin to write them again, unless that has time.

        With write_back it has until the workers have no more room for them. See go_on.
        """
        self._tiers.unmark_stored(digests)
        if self._policy != "write_back":
            self._to_flush |= dict.fromkeys(digests)

    def go_on(self) -> list[SendStore]:
        """Write more of what is to be written in the background, as far as few stores are open."""
        orders = []
        at_most = min(MAX_FLUSHING, self._max_outstanding)
        while self._to_flush and len(self._open) < at_most:
            digests = list(itertools.islice(self._to_flush, self._pages_at_once))
            for digest in digests:
                del self._to_flush[digest]
            tiers: tuple[Tier, ...] = ("device", "host")
            for tier in tiers:
                lacking = [each for each in digests if not self._tiers.is_stored(each)]
                pages = self._tiers.hold(tier, lacking)
                if pages:
                    self._tiers.mark_stored(page.digest for page in pages)
                    orders.append(self._open_store(pages, tier, in_turn=tier == "host"))
        return orders

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
        pages = store.order.pages
        if any(not 0 <= index < len(pages) for index in indices):
            raise InvariantViolated(f"store {store_id} has {len(pages)} pages, not {indices}")
        store.waiting.remove(stage)
        store.lacking |= set(range(len(pages))) - set(indices)
        if not store.waiting:
            self._close(store)
        return self._commits(stage, pages, set(indices) - store.withdrawn)

    def distrust(self, request: Request) -> tuple[bytes, ...]:
        """Let HiCache not know of what an output has brought to be stored; return its digests.

        Whatever the stages have written or will write.
        """
        if self._policy == "write_through":
            digests = tuple(request.digests[: request.num_pages_stored])
        else:
            in_work = self._in_work()
            digests = tuple(
                each for each in request.digests if each in in_work or self._tiers.is_stored(each)
            )
        self._withdraw(digests)
        return digests

    def abandon(self) -> None:
        """Note that nothing will be heard of the open stores."""
        for store in self._open.values():
            self._tiers.unmark_stored(page.digest for page in store.order.pages)

    def _in_work(self) -> set[bytes]:
        """Return the pages of the open stores."""
        return {page.digest for store in self._open.values() for page in store.order.pages}

    def _withdraw(self, digests: Collection[bytes]) -> None:
        for store in self._open.values():
            store.withdrawn.update(
                index for index, page in enumerate(store.order.pages) if page.digest in digests
            )

    def _close(self, store: _Store) -> None:
        """Let the pages of a store go, and note which of them were not written."""
        order = store.order
        del self._open[order.store_id]
        self.is_failing = bool(store.lacking)
        if not store.is_pinned:
            return
        self._tiers.release(order.tier, [page.page_id for page in order.pages])
        self._tiers.unmark_stored(order.pages[index].digest for index in store.lacking)

    def _open_store(
        self,
        pages: Sequence[PageToStore],
        tier: Tier,
        *,
        in_turn: bool = False,
        is_pinned: bool = True,
    ) -> SendStore:
        store_id, self._next_id = self._next_id, self._next_id + 1
        order = SendStore(
            epoch=self._epoch, store_id=store_id, pages=tuple(pages), tier=tier, in_turn=in_turn
        )
        self._open[store_id] = _Store(
            order=order, is_pinned=is_pinned, waiting=set(range(self._num_stages))
        )
        return order

    def _num_hit(self, request: Request) -> int:
        """Count the leading pages that an output did not compute in its last prefill."""
        return request.prefill.start // self._page_tokens

    def _take_filled(self, part: Part) -> list[PageToStore]:
        """Return the pages of a request to be stored that no store has had, and count them."""
        request, generation = part.request, self._tiers.device.generation
        if self._policy == "write_back" or request.table.generation != generation:
            return []
        first, last = request.num_pages_stored, part.end // self._page_tokens
        if self._policy == "write_through_selective":
            last = min(last, self._num_hit(request))
        request.num_pages_stored = max(first, last)
        pages = [_page(request, index, self._page_tokens) for index in range(first, last)]
        if self._policy == "write_through":
            return pages
        pages = [page for page in pages if not self._tiers.is_stored(page.digest)]
        self._tiers.mark_stored(page.digest for page in pages)
        return pages

    def _commits(
        self, stage: int, pages: Sequence[PageToStore], indices: Collection[int]
    ) -> list[CommitPages]:
        """Group what a stage wrote by namespace, in order."""
        by_namespace: dict[bytes, list[PageToStore]] = {}
        for index in sorted(indices):
            page = pages[index]
            by_namespace.setdefault(page.namespace, []).append(page)
        return [
            CommitPages(epoch=self._epoch, stage=stage, namespace=namespace, pages=tuple(found))
            for namespace, found in by_namespace.items()
        ]


def _page(request: Request, index: int, page_tokens: int) -> PageToStore:
    return PageToStore(
        namespace=request.spec.namespace,
        digest=request.page_digest(index, page_tokens),
        parent=request.page_digest(index - 1, page_tokens),
        page_index=index,
        page_id=request.table.page_ids[index],
    )
