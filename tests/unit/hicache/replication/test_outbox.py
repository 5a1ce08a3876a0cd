"""What a replica tells of what it did, and what it keeps to itself."""

from __future__ import annotations

from hicache.cache import PrefixCache
from hicache.changes import ChangeKind
from hicache.replication.event_codec import MAX_EVENT_BYTES, decode_events
from hicache.replication.events import (
    Committed,
    Event,
    Gone,
    Joined,
    Leased,
    Lost,
    Released,
    Told,
    Unlinked,
)
from hicache.replication.outbox import MAX_WAITING_BYTES, Outbox
from hicache.selection import Everything
from tests.cache_samples import PAGE_BYTES, store
from tests.page_samples import NAMESPACE, chain


def taken(outbox: Outbox) -> list[Event | None]:
    """Take all events."""
    return [event for piece in outbox.take() for event in decode_events(piece)]


def cache_over(outbox: Outbox, *, budget_bytes: int = 0) -> PrefixCache:
    """Return a cache that tells."""
    return PrefixCache(
        name="a", budget_bytes=budget_bytes, on_change=outbox.changed, on_lease=outbox.leased
    )


def test_a_commit_a_match_and_an_eviction() -> None:
    """In the order in which they happened, a lease with its last page only."""
    outbox = Outbox()
    cache = cache_over(outbox, budget_bytes=2 * PAGE_BYTES)
    digests, other = chain(2), chain(1, name="other")
    store(cache, digests, priority=3)
    hit = cache.match(digests, lease_ttl_s=5, now_s=0)
    cache.renew([hit.lease_id, "unknown"], ttl_s=9, now_s=0)
    cache.release(hit.lease_id, now_s=0)
    cache.release(hit.lease_id, now_s=0)
    store(cache, other)
    committed, told, leased, renewed, released, second, gone = taken(outbox)
    assert isinstance(committed, Committed)
    assert committed.stored.pages == (
        (digests[0], NAMESPACE, 3),
        (digests[1], digests[0], 3),
    )
    assert isinstance(told, Told)
    assert (told.summary.num_pages, told.last) == (2, digests[1])
    assert leased == Leased(lease_id=hit.lease_id, last=digests[1], ttl_s=5)
    assert renewed == Leased(lease_id=hit.lease_id, last=digests[1], ttl_s=9)
    assert released == Released(lease_id=hit.lease_id)
    assert isinstance(second, Committed)
    assert gone == Gone(
        kind=ChangeKind.EVICTED,
        namespace=NAMESPACE,
        digests=digests[1:],
        num_bytes=PAGE_BYTES,
    )
    assert taken(outbox) == []


def test_what_time_ends_everybody_sees_himself() -> None:
    """A pin that is over would else be told once by each replica."""
    outbox = Outbox()
    cache = cache_over(outbox)
    store(cache, chain(1))
    cache.pin(Everything(), until_s=5, now_s=0, dry_run=False)
    outbox.clear()
    cache.tick(now_s=6)
    assert taken(outbox) == []


def test_what_others_did_is_not_told_again() -> None:
    """Or it would go round for ever; only evictions because of it are news."""
    outbox = Outbox()
    cache = cache_over(outbox, budget_bytes=PAGE_BYTES)
    digests = chain(1)
    store(cache, digests)
    (committed,) = taken(outbox)
    assert isinstance(committed, Committed)
    elsewhere = cache.elsewhere
    elsewhere.committed(NAMESPACE, committed.stored.pages, committed.stored.coverage, now_s=1)
    elsewhere.hold("b-1", digests, ttl_s=1, now_s=1)
    elsewhere.matched(digests[0], now_s=1)
    elsewhere.released("b-1", now_s=1)
    elsewhere.drop(digests, now_s=1)
    elsewhere.unlinked(digests, now_s=1)
    assert taken(outbox) == []
    other = chain(2, name="other")
    pages = ((other[0], NAMESPACE, 0), (other[1], other[0], 0))
    elsewhere.committed(NAMESPACE, pages, committed.stored.coverage, now_s=2)
    (gone,) = taken(outbox)
    assert isinstance(gone, Gone)
    assert gone.digests == other[1:]


def test_much_at_once_comes_in_pieces() -> None:
    """No entry of the stream is large, and nothing is lost on the way."""
    outbox = Outbox()
    cache = cache_over(outbox)
    digests = chain(3000)
    store(cache, digests)
    cache.invalidate(digests[:1])
    outbox.unlinked(digests)
    pieces = outbox.take()
    assert all(len(piece) <= MAX_EVENT_BYTES for piece in pieces)
    events = [event for piece in pieces for event in decode_events(piece)]
    stored = [page[0] for e in events if isinstance(e, Committed) for page in e.stored.pages]
    gone = [digest for e in events if isinstance(e, Gone) for digest in e.digests]
    unlinked = [digest for e in events if isinstance(e, Unlinked) for digest in e.digests]
    assert [list(digests)] * 3 == [stored, gone, unlinked]
    assert 3000 * PAGE_BYTES == sum(e.num_bytes for e in events if isinstance(e, Gone))


def test_what_could_not_be_told_comes_first_the_next_time() -> None:
    """Order is kept over a fault of Redis."""
    outbox = Outbox()
    outbox.add(Released(lease_id="a"))
    outbox.add(Released(lease_id="b"))
    pieces = outbox.take()
    outbox.add(Released(lease_id="c"))
    outbox.put_back(pieces)
    told = [event.lease_id for event in taken(outbox) if isinstance(event, Released)]
    assert told == ["a", "b", "c"]


def test_too_much_becomes_a_word_of_warning() -> None:
    """Memory is bounded while Redis is away; the others scan afterwards."""
    outbox = Outbox()
    digests = chain(256)
    for _ in range(MAX_WAITING_BYTES // (256 * 32)):
        outbox.unlinked(digests)
    outbox.add(Joined())
    assert [Lost(), Joined()] == taken(outbox)
