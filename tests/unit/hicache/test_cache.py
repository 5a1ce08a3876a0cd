"""Budget, leases and doomed pages around the index."""

from __future__ import annotations

from chunkmesh.coverage import Coverage, layer_mask
from chunkmesh.page_record import PageRecord
from chunkmesh.stored_page import StoredPage
from hicache.cache import PrefixCache
from tests.page_samples import FORM, chain, parents

FULL = Coverage(layers=layer_mask(0, 4), model_layers=4, layer_bytes=10)


def filled(num_pages: int, *, budget_bytes: int = 0) -> tuple[PrefixCache, tuple[bytes, ...]]:
    """Return a cache that holds one prompt."""
    cache, digests = PrefixCache(name="a", budget_bytes=budget_bytes), chain(num_pages)
    assert cache.commit(zip(digests, parents(digests), strict=True), FULL) == num_pages
    return cache, digests


def test_a_match_is_counted_and_leased() -> None:
    """The denominator of the hit rate is what was asked."""
    cache, digests = filled(2)
    hit = cache.match((*digests, *chain(1, name="new")), lease_ttl_s=1, now_s=0)
    assert (hit.num_pages, cache.num_leases) == (2, 1)
    assert (cache.counters.queried_pages, cache.counters.hit_pages) == (3, 2)
    assert cache.match(chain(1, name="new"), lease_ttl_s=1, now_s=0).lease_id == ""


def test_the_budget_spares_leased_pages() -> None:
    """O21: what a request is loading must stay; what nobody holds goes."""
    cache, digests = filled(2, budget_bytes=80)
    lease_id = cache.match(digests, lease_ttl_s=10, now_s=0).lease_id
    other = chain(2, name="other")
    cache.commit(zip(other, parents(other), strict=True), FULL)
    assert cache.peek(digests) == 2
    assert cache.num_bytes == 80
    assert set(cache.doomed(9)) == set(other)
    cache.release(lease_id)
    assert cache.counters.evicted_pages == 2


def test_an_expired_lease_no_longer_protects() -> None:
    """Otherwise a lost scheduler would fill the cache for good."""
    cache, digests = filled(2, budget_bytes=80)
    cache.match(digests, lease_ttl_s=10, now_s=0)
    other = chain(1, name="other")
    cache.commit(zip(other, parents(other), strict=True), FULL)
    cache.match(digests, lease_ttl_s=0, now_s=0)
    cache.tick(now_s=10)
    assert cache.num_leases == 0
    late = chain(1, name="late")
    cache.commit(zip(late, parents(late), strict=True), FULL)
    assert cache.peek(digests) == 1


def test_a_commit_before_the_unlink_is_not_believed() -> None:
    """The unlink may still come after the write, and the page would be claimed but gone."""
    cache, digests = filled(3)
    assert cache.invalidate([digests[1]]) == 2
    again = list(zip(digests, parents(digests), strict=True))
    assert cache.commit(again, FULL) == 0
    assert cache.doomed(9) == digests[1:]
    cache.unlinked(digests[1:])
    assert cache.commit(again, FULL) == 2
    assert cache.peek(digests) == 3


def test_a_rebuild_skips_what_it_cannot_use() -> None:
    """Pages of another version or with a contradiction are left alone."""
    cache, digests = filled(1)
    record = PageRecord(format=FORM, parent=digests[0], page_index=1)
    contradiction = StoredPage(digest=digests[0], record=record, coverage=FULL)
    unreadable = StoredPage(digest=chain(2)[1], record=None, coverage=None)
    good = StoredPage(digest=chain(2)[1], record=record, coverage=FULL)
    assert cache.adopt([contradiction, unreadable, good]) == 2
    assert cache.peek(chain(2)) == 2


def test_forgetting_ends_leases_too() -> None:
    """Redis was flushed: nothing of before is true, and a later release does no harm."""
    cache, digests = filled(2)
    lease_id = cache.match(digests, lease_ttl_s=10, now_s=0).lease_id
    generation = cache.generation
    cache.forget()
    cache.release(lease_id)
    assert cache.is_empty
    assert cache.num_leases == 0
    assert cache.generation != generation
