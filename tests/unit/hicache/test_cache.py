"""Budget, leases and doomed pages around the index."""

from __future__ import annotations

import pytest

from chunkmesh.coverage import Coverage, layer_mask
from chunkmesh.errors import InvalidRequest
from chunkmesh.page_record import PageRecord
from chunkmesh.stored_page import StoredPage
from hicache.cache import PrefixCache
from hicache.doomed import ELSEWHERE_S, WAIT_S
from hicache.selection import Everything, InNamespace
from tests.cache_samples import FULL, OTHER_NAMESPACE, PAGE_BYTES, over_quota, store
from tests.page_samples import FORM, NAMESPACE, chain


def filled(num_pages: int, *, budget_bytes: int = 0) -> tuple[PrefixCache, tuple[bytes, ...]]:
    """Return a cache that holds one prompt."""
    cache, digests = PrefixCache(name="a", budget_bytes=budget_bytes), chain(num_pages)
    assert store(cache, digests) == num_pages
    return cache, digests


def leased(cache: PrefixCache, digests: tuple[bytes, ...], ttl_s: float = 10) -> str:
    """Lease a prompt at time 0."""
    return cache.match(digests, lease_ttl_s=ttl_s, now_s=0).lease_id


def test_a_match_is_counted_and_leased() -> None:
    """The denominator of the hit rate is what was asked."""
    cache, digests = filled(2)
    hit = cache.match((*digests, *chain(1, name="new")), lease_ttl_s=1, now_s=0)
    assert (hit.num_pages, cache.num_leases) == (2, 1)
    assert (cache.counters.queried_pages, cache.counters.hit_pages) == (3, 2)
    assert cache.match(chain(1, name="new"), lease_ttl_s=1, now_s=0).lease_id == ""


def test_the_budget_spares_leased_pages() -> None:
    """O21: what a request is loading must stay; what nobody holds goes."""
    cache, digests = filled(2, budget_bytes=2 * PAGE_BYTES)
    lease_id = leased(cache, digests)
    other = chain(2, name="other")
    assert store(cache, other) == 0
    assert cache.peek(digests) == 2
    assert cache.num_bytes == 2 * PAGE_BYTES
    assert set(cache.doomed(9, now_s=WAIT_S)) == set(other)
    cache.release(lease_id, now_s=0)
    assert cache.num_evicted_pages == 2


def test_a_leased_chain_stays_whole_and_then_goes_from_its_end() -> None:
    """O21: A to D stay while the request runs, D too; afterwards D goes before C before B."""
    cache, digests = filled(4, budget_bytes=4 * PAGE_BYTES)
    lease_id = leased(cache, digests)
    for name in ("one", "two", "three"):
        assert store(cache, chain(4, name=name)) == 0
        assert cache.peek(digests) == 4
    cache.release(lease_id, now_s=0)
    for num_left in (3, 2, 1):
        store(cache, chain(1, name=f"{num_left} left"))
        cache.check_integrity()
        assert num_left == cache.peek(digests)


def test_an_expired_lease_no_longer_protects() -> None:
    """Otherwise a lost scheduler would fill the cache for good."""
    cache, digests = filled(2, budget_bytes=2 * PAGE_BYTES)
    leased(cache, digests)
    store(cache, chain(1, name="other"))
    cache.tick(now_s=10)
    assert cache.num_leases == 0
    store(cache, chain(1, name="late"))
    assert cache.peek(digests) == 1


def test_a_renewed_lease_protects_on() -> None:
    """A long prompt waits longer than one lease holds."""
    cache, digests = filled(2, budget_bytes=2 * PAGE_BYTES)
    lease_id = leased(cache, digests)
    assert cache.renew([lease_id, "b-1"], ttl_s=10, now_s=9) == ("b-1",)
    cache.tick(now_s=18)
    store(cache, chain(1, name="late"))
    assert cache.peek(digests) == 2
    cache.tick(now_s=19)
    assert cache.renew([lease_id], ttl_s=10, now_s=19) == (lease_id,)


def test_a_commit_before_the_unlink_is_not_believed() -> None:
    """The unlink may still come after the write, and the page would be claimed but gone."""
    cache, digests = filled(3)
    assert cache.invalidate([digests[1]]) == 2
    assert store(cache, digests) == 0
    assert cache.doomed(9, now_s=0) == digests[1:]
    cache.unlinked(digests[1:])
    assert store(cache, digests) == 2
    assert cache.peek(digests) == 3


def test_a_victim_waits_before_it_is_unlinked() -> None:
    """Another replica may have leased it before it heard of the eviction."""
    cache, digests = filled(2)
    cache.evict(Everything(), now_s=5, dry_run=False)
    assert cache.match(digests, lease_ttl_s=1, now_s=5).num_pages == 0
    assert cache.doomed(9, now_s=5 + WAIT_S - 0.1) == ()
    assert set(cache.doomed(9, now_s=5 + WAIT_S)) == set(digests)


def test_a_victim_that_another_replica_leased_outlives_the_wait() -> None:
    """The request that loads it must find it in Redis until its lease ends."""
    cache, digests = filled(2)
    cache.evict(Everything(), now_s=0, dry_run=False)
    cache.elsewhere.hold("b-1", digests[:1], ttl_s=10, now_s=1)
    assert cache.doomed(9, now_s=5) == digests[1:]
    cache.unlinked(digests[1:])
    cache.elsewhere.hold("b-1", digests[:1], ttl_s=10, now_s=9)
    cache.tick(now_s=15)
    assert cache.doomed(9, now_s=15) == ()
    cache.tick(now_s=19)
    assert cache.doomed(9, now_s=19) == digests[:1]


def test_a_lease_of_another_replica_holds_like_our_own() -> None:
    """One replica evicts for all."""
    cache, digests = filled(2, budget_bytes=2 * PAGE_BYTES)
    cache.elsewhere.hold("b-1", digests, ttl_s=10, now_s=0)
    assert store(cache, chain(1, name="new")) == 0
    cache.release("b-1", now_s=0)
    assert store(cache, chain(1, name="newer")) == 1


def test_a_replica_that_does_not_evict_goes_over_its_budget() -> None:
    """Two replicas that both make room would throw away twice as much."""
    cache, digests = filled(2, budget_bytes=2 * PAGE_BYTES)
    cache.keep_limits(until_s=0)
    store(cache, chain(2, name="other"))
    assert cache.num_bytes == 4 * PAGE_BYTES
    assert cache.elsewhere.drop(digests[1:], now_s=0) == 1
    assert cache.doomed(9, now_s=WAIT_S) == ()
    cache.keep_limits(until_s=1)
    cache.tick(now_s=0)
    assert cache.num_bytes == 2 * PAGE_BYTES


def test_a_page_that_another_replica_unlinks_is_not_believed_for_a_while() -> None:
    """Its unlink may come after the write; but a replica that died must not forbid it for good."""
    cache, digests = filled(1)
    cache.elsewhere.drop(digests, now_s=0)
    assert store(cache, digests) == 0
    cache.tick(ELSEWHERE_S)
    assert store(cache, digests) == 1
    cache.elsewhere.drop(digests, now_s=0)
    cache.unlinked(digests)
    assert store(cache, digests) == 1


def test_a_store_over_its_quota_that_cannot_make_room_is_not_kept() -> None:
    """A tenant fills what it was given, and the neighbours stay as they are."""
    cache, digests = filled(2)
    cache.set_quota(NAMESPACE, 3 * PAGE_BYTES, now_s=0)
    leased(cache, digests)
    other = chain(2, name="other")
    neighbour = chain(3, name="neighbour")
    assert store(cache, neighbour, namespace=OTHER_NAMESPACE) == 3
    assert store(cache, other) == 1
    assert (cache.peek(digests), cache.peek(other), cache.peek(neighbour)) == (2, 1, 3)
    cache.check_integrity()


def test_a_quota_makes_room_at_once_and_says_how_much() -> None:
    """What --dry-run says is what happens."""
    cache, digests = filled(4)
    assert (over_quota(cache, 100), cache.peek(digests)) == ([40, 40], 4)
    assert dict(cache.quotas()) == {}
    cache.set_quota(NAMESPACE, 100, now_s=0)
    assert (cache.peek(digests), dict(cache.quotas())) == (2, {NAMESPACE: 100})
    cache.set_quota(NAMESPACE, 0, now_s=0)
    assert dict(cache.quotas()) == {}


def test_a_release_lets_an_old_quota_take_hold() -> None:
    """Pages that were leased when the quota came go when nobody holds them."""
    cache, digests = filled(3)
    lease_id = leased(cache, digests)
    cache.set_quota(NAMESPACE, PAGE_BYTES, now_s=0)
    assert cache.num_bytes == 3 * PAGE_BYTES
    cache.release(lease_id, now_s=0)
    assert cache.num_bytes == PAGE_BYTES


def test_restored_quotas_replace_all_and_are_kept_by_the_next_tick() -> None:
    """They come from Redis, which is right."""
    cache, _ = filled(3)
    cache.set_quota(OTHER_NAMESPACE, 5, now_s=0)
    cache.restore_quotas({NAMESPACE: PAGE_BYTES, OTHER_NAMESPACE: 0})
    cache.tick(now_s=0)
    assert (dict(cache.quotas()), cache.num_bytes) == ({NAMESPACE: PAGE_BYTES}, PAGE_BYTES)


def test_partial_pages_take_budget_and_can_go() -> None:
    """A stage that never wrote its part must not cost memory for ever."""
    cache, digests = filled(1, budget_bytes=PAGE_BYTES + 10)
    part = Coverage(layers=layer_mask(0, 1), model_layers=4, layer_bytes=10)
    store(cache, chain(1, name="part"), coverage=part)
    assert (cache.num_partial_pages, cache.num_bytes) == (1, 50)
    cache.match(digests, lease_ttl_s=0, now_s=0)
    store(cache, chain(1, name="other"), coverage=part)
    assert (cache.num_partial_pages, cache.peek(digests)) == (1, 1)


def test_what_a_broken_commit_recorded_before_it_broke_keeps_the_budget() -> None:
    """The error is the caller's; the limits are ours."""
    cache, digests = filled(2, budget_bytes=3 * PAGE_BYTES)
    new = chain(2, name="new")
    pages = [(new[0], NAMESPACE, 0), (new[1], new[0], 0), (digests[1], NAMESPACE, 0)]
    with pytest.raises(InvalidRequest):
        cache.commit(NAMESPACE, pages, FULL, now_s=0)
    assert (cache.num_bytes, cache.peek(new), cache.peek(digests)) == (3 * PAGE_BYTES, 2, 1)


def test_a_rebuild_skips_what_it_cannot_use() -> None:
    """Pages of another version or with a contradiction are left alone."""
    cache, digests = filled(1)
    record = PageRecord(format=FORM, namespace=NAMESPACE, parent=digests[0], page_index=1)
    contradiction = StoredPage(digest=digests[0], record=record, coverage=FULL)
    unreadable = StoredPage(digest=chain(2)[1], record=None, coverage=None)
    good = StoredPage(digest=chain(2)[1], record=record, coverage=FULL)
    assert cache.adopt([contradiction, unreadable, good], now_s=0) == 2
    assert cache.peek(chain(2)) == 2


def test_a_rebuild_takes_pages_in_any_order_with_their_namespace() -> None:
    """Records tell all; what hangs on a page that is missing counts and may be evicted."""
    cache, digests = PrefixCache(name="a", budget_bytes=0), chain(4)
    found = [
        StoredPage(
            digest=digest,
            record=PageRecord(
                format=FORM, namespace=OTHER_NAMESPACE, parent=parent, page_index=index
            ),
            coverage=FULL,
        )
        for index, (digest, parent) in enumerate(
            zip(digests, (OTHER_NAMESPACE, *digests[:-1]), strict=True)
        )
    ]
    assert cache.adopt([found[3], found[0], found[1]], now_s=0) == 0
    (state,) = cache.namespaces()
    assert (state.namespace, state.num_pages) == (OTHER_NAMESPACE, 3)
    assert cache.peek(digests) == 2
    cache.adopt([found[2]], now_s=0)
    assert cache.peek(digests) == 4
    cache.check_integrity()


def test_a_rebuild_leaves_the_order_of_eviction() -> None:
    """An hourly scan must not make the oldest page the newest."""
    cache, old = filled(1, budget_bytes=2 * PAGE_BYTES)
    new = chain(1, name="new")
    store(cache, new)
    record = PageRecord(format=FORM, namespace=NAMESPACE, parent=NAMESPACE, page_index=0)
    cache.adopt([StoredPage(digest=old[0], record=record, coverage=FULL)], now_s=9)
    store(cache, chain(1, name="newer"))
    assert (cache.peek(old), cache.peek(new)) == (0, 1)


def test_forgetting_ends_leases_too() -> None:
    """Redis was flushed: nothing of before is true, and a later release does no harm."""
    cache, digests = filled(2)
    lease_id = leased(cache, digests)
    generation = cache.generation
    cache.forget()
    cache.release(lease_id, now_s=0)
    assert cache.is_empty
    assert cache.num_leases == 0
    assert cache.generation != generation


def test_forgetting_keeps_what_admins_wished() -> None:
    """Pins and quotas are no claims about Redis."""
    cache, digests = filled(2)
    cache.pin(Everything(), until_s=None, now_s=0, dry_run=False)
    cache.set_quota(NAMESPACE, 1000, now_s=0)
    cache.forget()
    store(cache, digests)
    (state,) = cache.namespaces()
    assert (state.num_pinned_pages, state.quota_bytes) == (2, 1000)


def test_a_hand_evicts_what_nobody_holds() -> None:
    """It says how many of the chosen stay, and deletes those that went."""
    cache, digests = filled(3)
    leased(cache, digests[:2])
    other = chain(2, name="other")
    store(cache, other)
    chosen = InNamespace(namespace=NAMESPACE)
    asked = cache.evict(chosen, now_s=0, dry_run=True)
    assert (asked.num_pages, asked.num_bytes, asked.num_held_pages) == (3, 120, 2)
    assert asked == cache.evict(chosen, now_s=0, dry_run=False)
    assert (cache.peek(digests), cache.peek(other)) == (2, 0)
    assert set(cache.doomed(9, now_s=WAIT_S)) == {digests[2], *other}


def test_an_amount_counts_known_pages() -> None:
    """Export and verify say beforehand how much there is to do."""
    cache, digests = filled(2)
    amount = cache.measure((*digests, NAMESPACE))
    assert (amount.num_pages, amount.num_bytes) == (2, 2 * PAGE_BYTES)
