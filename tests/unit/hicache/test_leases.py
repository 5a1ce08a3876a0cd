"""Leases."""

from __future__ import annotations

from chunkmesh.indexed_page import PageLock
from hicache.leases import MAX_TTL_S, Leases

LOCK = PageLock(pages=())
OTHER = PageLock(pages=())


def test_a_lease_ends_by_time() -> None:
    """A scheduler that died must not hold pages for ever."""
    leases = Leases("a")
    leases.take(LOCK, ttl_s=2, now_s=10)
    leases.take(OTHER, ttl_s=3, now_s=10)
    assert leases.expire(11.9) == ()
    assert leases.expire(12) == (LOCK,)
    assert len(leases) == 1


def test_a_lease_is_released_once() -> None:
    """A late or repeated release must not touch another lease."""
    leases = Leases("a")
    lease_id = leases.take(LOCK, ttl_s=2, now_s=0)
    assert leases.release(lease_id) is LOCK
    assert leases.release(lease_id) is None
    assert leases.release("unknown") is None
    assert leases.expire(5) == ()


def test_ids_of_two_starts_differ() -> None:
    """A release that was meant for the server before a restart must miss."""
    assert Leases("a").take(LOCK, ttl_s=1, now_s=0) != Leases("b").take(LOCK, ttl_s=1, now_s=0)


def test_no_lease_is_for_ever() -> None:
    """The caller names the time; the limit is ours."""
    leases = Leases("a")
    lease_id = leases.take(LOCK, ttl_s=1e9, now_s=0)
    leases.take(OTHER, ttl_s=1e9, now_s=0)
    leases.renew([lease_id], ttl_s=1e9, now_s=1)
    assert leases.expire(MAX_TTL_S) == (OTHER,)
    assert leases.expire(MAX_TTL_S + 1) == (LOCK,)


def test_a_renewal_counts_from_now() -> None:
    """Longer or shorter than what was left."""
    leases = Leases("a")
    longer = leases.take(LOCK, ttl_s=2, now_s=0)
    shorter = leases.take(OTHER, ttl_s=100, now_s=0)
    assert leases.renew([longer, shorter], ttl_s=3, now_s=1) == ()
    assert leases.expire(3.9) == ()
    assert leases.expire(4) == (LOCK, OTHER)


def test_a_renewal_names_what_has_ended() -> None:
    """Its pages may be gone, so the request must not load them."""
    leases = Leases("a")
    late = leases.take(LOCK, ttl_s=2, now_s=0)
    live = leases.take(OTHER, ttl_s=9, now_s=0)
    assert leases.renew([late, live, "b-1"], ttl_s=3, now_s=2) == (late, "b-1")
    assert leases.expire(2) == (LOCK,)
