"""What the service asks: the contents of the cache, its leases, counters and descriptions. Pure.

Changed by the service, by a rebuild and by what other replicas tell, on the event loop only. A page
that left the index is doomed until it is unlinked in Redis; a commit of it meanwhile is not
believed, because the unlink may come later. The shell takes doomed pages away with doomed() and
says unlinked(). All times are of one clock of the caller's; what is over by then protects nothing,
ticked or not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from chunkmesh.coverage import Coverage
from chunkmesh.indexed_page import PageInfo, PagePlace
from chunkmesh.stored_page import StoredPage
from hicache.all_pins import AllPins
from hicache.changes import OnChange, OnLease, matched, unheard, unleased
from hicache.contents import CacheContents
from hicache.elsewhere import Elsewhere
from hicache.eviction_policy import POLICIES, PolicyName
from hicache.leases import Leases
from hicache.namespaces import NamespaceInfo, NamespaceInfos, NamespaceState, namespace_states
from hicache.runs import Run, runs_below, tops_of
from hicache.selection import Selection, WouldGo, looking
from hicache.tallies import Amount, Removal, amount_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """The longest stored prefix."""

    num_pages: int
    lease_id: str
    """Empty if there are no pages or none was wanted."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Counters:
    """Since the start of the process."""

    queries: int = 0
    queried_pages: int = 0
    hit_pages: int = 0


class PrefixCache:
    """Owner of the contents and the leases on them."""

    def __init__(
        self,
        *,
        name: str,
        budget_bytes: int,
        policy: PolicyName = "lru",
        on_change: OnChange = unheard,
        on_lease: OnLease = unleased,
    ) -> None:
        """Take a name unique to this process start, and the budget; 0 means none."""
        self.counters = Counters()
        self.generation = 0
        """Raised by forget, so that a rebuild under way notices."""
        self._contents = CacheContents(
            budget_bytes=budget_bytes, policy=POLICIES[policy], on_change=on_change
        )
        self._leases = Leases(name)
        self.elsewhere = Elsewhere(self._contents, self._leases)
        """Takes note of what other replicas do."""
        self.all_pins = AllPins(self._contents)
        """Also of pages that are not there."""
        self._infos = NamespaceInfos()
        self._on_change = on_change
        self._on_lease = on_lease

    @property
    def budget_bytes(self) -> int:
        """Most bytes of all pages; 0 means no limit."""
        return self._contents.bounds.budget_bytes

    @property
    def num_pages(self) -> int:
        """Pages stored for all layers."""
        return self._contents.index.num_pages

    @property
    def num_partial_pages(self) -> int:
        """Pages stored for some layers only."""
        return self._contents.index.num_partial_pages

    @property
    def is_empty(self) -> bool:
        """Whether no page is known, not even in part."""
        return len(self._contents.tree) == 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages."""
        return self._contents.index.num_bytes

    @property
    def num_leases(self) -> int:
        """Live leases."""
        return len(self._leases)

    @property
    def num_evicted_pages(self) -> int:
        """Pages that went to keep the budget or a quota."""
        return self._contents.num_evicted_pages

    def keep_limits(self, *, until_s: float) -> None:
        """Say until when this replica evicts, if another one may; without it, for good."""
        self._contents.evicts_until_s = until_s

    def match(self, digests: Sequence[bytes], *, lease_ttl_s: float, now_s: float) -> Hit:
        """Find the leading visible pages and lease them if lease_ttl_s > 0."""
        pages = self._contents.index.match(digests, now_s=now_s)
        self.count_query(len(digests))
        self.counters.hit_pages += len(pages)
        self._on_change(matched(pages, num_queried_pages=len(digests)))
        if not pages or lease_ttl_s <= 0:
            return Hit(num_pages=len(pages), lease_id="")
        lock = self._contents.index.lock(pages)
        lease_id = self._leases.take(lock, ttl_s=lease_ttl_s, now_s=now_s)
        self._on_lease(lease_id, pages[-1].digest, lease_ttl_s)
        return Hit(num_pages=len(pages), lease_id=lease_id)

    def count_query(self, num_pages: int) -> None:
        """Count a question, also one that is answered as a miss because Redis is away."""
        self.counters.queries += 1
        self.counters.queried_pages += num_pages

    def renew(self, lease_ids: Iterable[str], *, ttl_s: float, now_s: float) -> tuple[str, ...]:
        """Let leases hold for ttl_s from now on; return the ids of those that have ended."""
        asked = tuple(lease_ids)
        ended = self._leases.renew(asked, ttl_s=ttl_s, now_s=now_s)
        for lease_id in asked:
            last = self._leases.last_page(lease_id)
            if last is not None and lease_id not in ended:
                self._on_lease(lease_id, last, ttl_s)
        return ended

    def release(self, lease_id: str, *, now_s: float) -> None:
        """End a lease; nothing happens if it has ended."""
        if self.elsewhere.released(lease_id, now_s=now_s):
            self._on_lease(lease_id, None, 0.0)

    @property
    def is_over(self) -> bool:
        """Whether there is more to do than was done at once: see go_on."""
        return self._contents.is_over

    def tick(self, now_s: float) -> None:
        """End leases and pins whose time is over, and evict what is over the limits."""
        _end_leases(self._contents, self._leases, now_s)
        self.go_on(now_s)

    def go_on(self, now_s: float) -> None:
        """Do more of what is_over tells of, as much as nobody has to wait for."""
        self._contents.go_on(now_s=now_s)

    def commit(
        self,
        namespace: bytes,
        pages: Iterable[tuple[bytes, bytes, int]],
        coverage: Coverage,
        *,
        now_s: float,
    ) -> int:
        """Record (digest, parent, priority) pages that a worker stored.

        Returns how many became visible and stay; those for which there is no room go again.

        Raises:
            InvalidRequest: a page contradicts what is known of it; those before it are recorded.
        """
        places = (
            PagePlace(namespace=namespace, digest=digest, parent=parent, priority=priority)
            for digest, parent, priority in pages
        )
        return self._at(now_s).commit(namespace, places, coverage, now_s=now_s)

    def adopt(self, pages: Iterable[StoredPage], *, now_s: float) -> int:
        """Record pages found in Redis; return how many were of no use.

        What is known already keeps its place in the order of eviction.
        """
        return self._contents.adopt(pages, now_s=now_s)

    def invalidate(self, digests: Iterable[bytes]) -> int:
        """Forget broken pages and all below them, held or not; return how many. Pins wait."""
        return self._contents.invalidate(digests)

    def known(self) -> set[bytes]:
        """Return the digests of all pages; the set is the caller's."""
        return self._contents.tree.digests()

    def peek(self, digests: Sequence[bytes]) -> int:
        """Count the leading visible pages; changes nothing."""
        return self._contents.index.peek(digests)

    def info(self, digest: bytes) -> PageInfo:
        """Return the state of one page."""
        return self._contents.index.info(digest)

    def forget(self) -> None:
        """Forget all pages and leases, because Redis lost or will lose them; nobody is told.

        Pins, quotas and what namespaces stand for stay.
        """
        self.generation += 1
        self._contents.forget()
        self._leases.clear()

    def doomed(self, num_pages: int, *, now_s: float) -> tuple[bytes, ...]:
        """Return up to num_pages pages to unlink in Redis now."""
        return self._contents.doomed.due(num_pages, now_s)

    def unlinked(self, digests: Iterable[bytes]) -> None:
        """Take note that pages are gone from Redis; they may be stored anew."""
        self._contents.doomed.remove(digests)

    def selecting(self, selection: Selection, *, now_s: float) -> Iterator[bytes | None]:
        """Walk through the pages that are meant, parents before children; None is a step between.

        Pages may come and go between two steps.

        Raises:
            NotFound: a prefix names no page.
            InvalidRequest: a prefix names several, or is too short or too long.
        """
        pages = looking(selection, self._contents.tree, now_s)
        return (None if page is None else page.digest for page in pages)

    def measure(self, digests: Iterable[bytes]) -> Amount:
        """Count those of the pages that are known."""
        return amount_of(self._contents.tree.known(digests))

    def evict(
        self, selection: Selection, *, now_s: float, dry_run: bool, would_go: WouldGo | None = None
    ) -> Removal:
        """Evict what is meant and may go; would_go knows earlier dry runs. Raises as selecting."""
        return self._at(now_s).evict(selection, now_s=now_s, dry_run=dry_run, would_go=would_go)

    def pin(
        self, selection: Selection, *, until_s: float | None, now_s: float, dry_run: bool
    ) -> Amount:
        """Keep the pages that are meant until then, None for good; raises what selecting does."""
        return self._at(now_s).pin(selection, until_s=until_s, now_s=now_s, dry_run=dry_run)

    def unpin(self, selection: Selection, *, now_s: float, dry_run: bool) -> Amount:
        """End the pins of the pages that are meant; raises what selecting does."""
        return self._at(now_s).unpin(selection, now_s=now_s, dry_run=dry_run)

    def over_quota(self, namespace: bytes, max_bytes: int, *, now_s: float) -> Iterator[int | None]:
        """Walk through the bytes of what a quota would evict as selecting does through pages."""
        return self._at(now_s).over_quota(namespace, max_bytes)

    def set_quota(self, namespace: bytes, max_bytes: int, *, now_s: float) -> None:
        """Bound the bytes of a namespace, 0 for no limit, and begin to evict what is over it."""
        self._at(now_s).set_quota(namespace, max_bytes, now_s=now_s)

    def quotas(self) -> Mapping[bytes, int]:
        """Return most bytes of each namespace that has a limit."""
        return self._contents.bounds.quotas

    def restore_quotas(self, quotas: Mapping[bytes, int]) -> None:
        """Replace all quotas; nobody is told, and the next tick keeps them."""
        self._contents.bounds.restore_quotas(quotas)

    def describe(self, namespace: bytes, info: NamespaceInfo) -> None:
        """Take note of what a namespace stands for."""
        self._infos.add(namespace, info, used=self._contents.index.namespaces)

    def namespaces(self) -> tuple[NamespaceState, ...]:
        """Return what is cached, by bytes, the largest first; quotas without pages too."""
        return namespace_states(
            self._contents.index.namespaces, quotas=self.quotas(), infos=self._infos.all
        )

    def runs(
        self, *, namespace: bytes | None, below: bytes | None, max_depth: int, now_s: float
    ) -> Iterator[Run]:
        """Walk through what is cached, a run of pages each, parents first.

        Pages may come and go between two steps; the first raises what selecting does.
        """
        tops = tops_of(self._contents.tree, namespace=namespace, below=below)
        return runs_below(self._contents.tree, tops, max_depth=max_depth, now_s=now_s)

    def _at(self, now_s: float) -> CacheContents:
        return _without_what_is_over(self._contents, self._leases, now_s)

    def check_integrity(self) -> None:
        """Raise InvariantViolated if counts, links or pins disagree with the pages; for tests."""
        self._contents.check_integrity()


def _without_what_is_over(contents: CacheContents, leases: Leases, now_s: float) -> CacheContents:
    """End leases, pins and dooms elsewhere whose time is over; return the contents."""
    _end_leases(contents, leases, now_s)
    contents.expire_pins(now_s)
    return contents


def _end_leases(contents: CacheContents, leases: Leases, now_s: float) -> None:
    """End leases and dooms elsewhere whose time is over."""
    contents.unlock(leases.expire(now_s), now_s=now_s)
    contents.doomed.expire(now_s)
