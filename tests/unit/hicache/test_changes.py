"""What the shell is told to publish."""

from __future__ import annotations

import pytest

from hicache.cache import PrefixCache
from hicache.changes import Change, ChangeKind, Stored
from hicache.selection import Everything, Prompt
from tests.cache_samples import FULL, OTHER_NAMESPACE, PAGE_BYTES, restore_pins, store
from tests.page_samples import NAMESPACE, chain

DIGESTS = chain(3)


@pytest.fixture
def heard() -> list[Change]:
    """What was told."""
    return []


@pytest.fixture
def cache(heard: list[Change]) -> PrefixCache:
    """Room for three pages, and who listens."""
    return PrefixCache(name="a", budget_bytes=3 * PAGE_BYTES, on_change=heard.append)


def committed(digests: tuple[bytes, ...], namespace: bytes, *, num_bytes: int) -> Change:
    """Return what is told of a prompt's commit: enough to do it again elsewhere."""
    chained = zip(digests, (namespace, *digests[:-1]), strict=True)
    stored = Stored(pages=tuple((digest, parent, 0) for digest, parent in chained), coverage=FULL)
    return Change(
        kind=ChangeKind.COMMITTED,
        namespace=namespace,
        digests=digests,
        num_bytes=num_bytes,
        stored=stored,
    )


def test_a_store_and_what_it_pushed_out_are_told_in_order(
    cache: PrefixCache, heard: list[Change]
) -> None:
    """Whoever follows the changes has what we have; victims come parents first."""
    store(cache, DIGESTS)
    other = chain(2, name="other")
    store(cache, other, namespace=OTHER_NAMESPACE)
    assert heard == [
        committed(DIGESTS, NAMESPACE, num_bytes=120),
        committed(other, OTHER_NAMESPACE, num_bytes=80),
        Change(kind=ChangeKind.EVICTED, namespace=NAMESPACE, digests=DIGESTS[1:], num_bytes=80),
    ]


def test_a_look_up_tells_what_was_asked_and_found(cache: PrefixCache, heard: list[Change]) -> None:
    """Also if that is nothing."""
    store(cache, DIGESTS)
    heard.clear()
    cache.match((*DIGESTS[:2], bytes(32)), lease_ttl_s=0, now_s=0)
    cache.match((bytes(32),), lease_ttl_s=0, now_s=0)
    hit, miss = heard
    assert (hit.kind, hit.namespace, hit.digests) == (
        ChangeKind.MATCHED,
        NAMESPACE,
        DIGESTS[:2],
    )
    assert (hit.num_pages, hit.num_queried_pages, hit.num_bytes) == (2, 3, 80)
    assert (miss.namespace, miss.num_pages, miss.num_queried_pages) == (None, 0, 1)


def test_what_an_admin_does_is_told_once_a_namespace(
    cache: PrefixCache, heard: list[Change]
) -> None:
    """Pins, unpins, quotas and deletions; dry runs are nothing to tell."""
    store(cache, DIGESTS[:2])
    store(cache, chain(1, name="other"), namespace=OTHER_NAMESPACE)
    heard.clear()
    for dry_run in (True, False):
        cache.pin(Prompt(digests=DIGESTS), until_s=None, now_s=0, dry_run=dry_run)
        cache.unpin(Everything(), now_s=0, dry_run=dry_run)
        cache.evict(Everything(), now_s=0, dry_run=dry_run)
    assert list(cache.over_quota(NAMESPACE, 1, now_s=0)) == []
    cache.set_quota(NAMESPACE, 1000, now_s=0)
    told = [(change.kind.name, change.namespace, change.num_pages) for change in heard]
    assert told == [
        ("PINNED", NAMESPACE, 2),
        ("UNPINNED", NAMESPACE, 2),
        ("DELETED", NAMESPACE, 2),
        ("DELETED", OTHER_NAMESPACE, 1),
        ("QUOTA_SET", NAMESPACE, 0),
    ]
    assert heard[-1].num_bytes == 1000


def test_an_invalidation_and_the_end_of_a_pin_are_told(
    cache: PrefixCache, heard: list[Change]
) -> None:
    """Pins that end by time, and those that wait for a page in vain."""
    store(cache, DIGESTS)
    cache.pin(Everything(), until_s=5, now_s=0, dry_run=False)
    cache.invalidate(DIGESTS[2:])
    heard.clear()
    cache.tick(now_s=5)
    restore_pins(cache, [(DIGESTS[2], None)], now_s=5)
    cache.all_pins.end_waiting(DIGESTS)
    cache.invalidate(DIGESTS[:1])
    told = [(change.kind.name, change.namespace, change.digests) for change in heard]
    assert told == [
        ("UNPINNED", NAMESPACE, DIGESTS[:2]),
        ("UNPINNED", None, DIGESTS[2:]),
        ("INVALIDATED", NAMESPACE, DIGESTS[:2]),
    ]


def test_nothing_is_told_of_nothing(cache: PrefixCache, heard: list[Change]) -> None:
    """An empty commit, an unknown page, a tick in which nothing ends."""
    cache.commit(NAMESPACE, [], FULL, now_s=0)
    cache.invalidate([bytes(32)])
    cache.evict(Everything(), now_s=0, dry_run=False)
    cache.tick(now_s=9)
    cache.forget()
    assert heard == []
