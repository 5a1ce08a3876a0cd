"""Two caches that hear of each other, without Redis between them."""

from __future__ import annotations

import pytest

from hicache.cache import PrefixCache
from hicache.changes import ChangeKind, Stored, Summary
from hicache.doomed import WAIT_S
from hicache.replication.event_codec import encode_event
from hicache.replication.events import (
    Cleared,
    Committed,
    Compared,
    Described,
    Event,
    Joined,
    KeptChanged,
    Leased,
    Lost,
)
from hicache.replication.follower import Follower, Need
from hicache.replication.outbox import Outbox
from hicache.selection import Everything
from tests.cache_samples import FULL, OTHER_NAMESPACE, PAGE_BYTES, store
from tests.page_samples import NAMESPACE, chain

DIGESTS = chain(3)


class Pair:
    """An evictor, and a replica that follows and is followed."""

    def __init__(self, *, budget_bytes: int = 0) -> None:
        self.told: list[Summary] = []
        self.cleared: list[tuple[int, int]] = []
        self.outboxes = [Outbox(), Outbox()]
        self.evictor, self.other = (
            PrefixCache(
                name=name,
                budget_bytes=budget_bytes,
                on_change=outbox.changed,
                on_lease=outbox.leased,
            )
            for name, outbox in zip("ab", self.outboxes, strict=True)
        )
        self.other.keep_limits(until_s=0)
        self.followers = [
            Follower(
                cache,
                tell=self.told.append,
                tell_cleared=lambda pages, size: self.cleared.append((pages, size)),
            )
            for cache in (self.evictor, self.other)
        ]

    def talk(self, now_s: float = 0.0) -> set[Need]:
        """Hand what each has to tell to the other."""
        needs: set[Need] = set()
        for teller, hearer in ((0, 1), (1, 0)):
            for piece in self.outboxes[teller].take():
                needs |= self.followers[hearer].follow(piece, now_s=now_s)
        return needs

    def unlink(self, cache: PrefixCache, now_s: float) -> tuple[bytes, ...]:
        """Take doomed pages away as the shell does."""
        gone = cache.doomed(99, now_s=now_s)
        cache.unlinked(gone)
        self.outboxes[cache is self.other].unlinked(gone)
        return gone


def test_pages_come_and_go_at_both() -> None:
    """The evictor makes room for what it was told of."""
    pair = Pair(budget_bytes=3 * PAGE_BYTES)
    store(pair.evictor, DIGESTS)
    pair.talk()
    assert pair.other.peek(DIGESTS) == 3
    new = chain(2, name="new")
    store(pair.other, new)
    assert pair.other.num_pages == 5
    pair.talk()
    pair.talk()
    for cache in (pair.evictor, pair.other):
        assert (cache.peek(DIGESTS), cache.peek(new), cache.num_pages) == (1, 2, 3)
        cache.check_integrity()
    assert [ChangeKind.COMMITTED, ChangeKind.COMMITTED, ChangeKind.EVICTED] == [
        summary.kind for summary in pair.told
    ]


def test_a_page_comes_back_only_when_it_was_unlinked() -> None:
    """A write before that may be undone by it."""
    pair = Pair()
    store(pair.evictor, DIGESTS)
    pair.talk()
    pair.evictor.evict(Everything(), now_s=0, dry_run=False)
    pair.talk()
    assert store(pair.other, DIGESTS) == 0
    assert set(DIGESTS) == set(pair.unlink(pair.evictor, WAIT_S))
    pair.talk()
    assert store(pair.other, DIGESTS) == 3
    pair.talk()
    assert pair.evictor.peek(DIGESTS) == 3


def test_a_lease_at_the_other_keeps_victims_in_redis() -> None:
    """It was given before the eviction was heard of, and is heard of before the unlink."""
    pair = Pair()
    store(pair.evictor, DIGESTS)
    pair.talk()
    lease_id = pair.other.match(DIGESTS, lease_ttl_s=10, now_s=0).lease_id
    pair.evictor.evict(Everything(), now_s=0, dry_run=False)
    pair.talk()
    assert pair.unlink(pair.evictor, WAIT_S) == ()
    pair.other.release(lease_id, now_s=3)
    pair.talk(now_s=3)
    assert set(DIGESTS) == set(pair.unlink(pair.evictor, 3))


def test_a_lease_at_the_other_spares_the_whole_prompt() -> None:
    """Its last page is enough to tell; it ends by its time if nobody says so."""
    pair = Pair(budget_bytes=3 * PAGE_BYTES)
    store(pair.evictor, DIGESTS)
    pair.talk()
    pair.other.match(DIGESTS, lease_ttl_s=10, now_s=0)
    pair.talk()
    assert store(pair.evictor, chain(2, name="new"), now_s=9) == 0
    assert pair.evictor.peek(DIGESTS) == 3
    pair.evictor.tick(now_s=10)
    assert pair.evictor.num_leases == 0


def test_an_old_word_does_not_shorten_a_lease() -> None:
    """Two replicas tell of one lease, and what is heard last may be older."""
    pair = Pair()
    store(pair.evictor, DIGESTS)
    lease_id = pair.evictor.match(DIGESTS, lease_ttl_s=10, now_s=0).lease_id
    old = Leased(lease_id=lease_id, last=DIGESTS[2], ttl_s=1)
    pair.followers[0].follow(encode_event(old), now_s=0)
    pair.evictor.tick(now_s=9)
    assert pair.evictor.num_leases == 1
    assert [(lease_id, DIGESTS[2], 1.0)] == pair.evictor.elsewhere.untold_leases(now_s=9)
    assert [] == pair.other.elsewhere.untold_leases(now_s=9)


def test_a_match_at_the_other_is_a_use() -> None:
    """The evictor sees hits that it never answered."""
    pair = Pair(budget_bytes=2 * PAGE_BYTES)
    hot, cold = chain(1, name="hot"), chain(1, name="cold")
    store(pair.evictor, hot)
    store(pair.evictor, cold)
    pair.talk()
    pair.other.match(hot, lease_ttl_s=0, now_s=1)
    pair.talk(now_s=1)
    store(pair.evictor, chain(1, name="new"), now_s=2)
    assert (pair.evictor.peek(hot), pair.evictor.peek(cold)) == (1, 0)
    assert pair.evictor.info(hot[0]).num_hits == 1
    assert pair.evictor.counters.queries == 0


def test_a_clear_is_a_clear() -> None:
    """And told as one."""
    pair = Pair()
    store(pair.evictor, DIGESTS)
    pair.talk()
    pair.evictor.forget()
    pair.outboxes[0].add(Cleared(num_pages=3, num_bytes=120))
    assert pair.talk() == {Need.RESCAN}
    assert pair.other.is_empty
    assert pair.cleared == [(3, 120)]


@pytest.mark.parametrize(
    ("event", "need"),
    [
        (KeptChanged(), Need.LOAD_KEPT),
        (Described(), Need.LOAD_INFOS),
        (Joined(), Need.TELL_LEASES),
        (Compared(), Need.RESCAN_SOON),
        (Lost(), Need.RESCAN),
    ],
)
def test_some_events_need_the_shell(event: Event, need: Need) -> None:
    """What only Redis or the stream can tell."""
    pair = Pair()
    assert {need} == pair.followers[0].follow(encode_event(event), now_s=0)


def test_contradictions_and_nonsense_are_counted() -> None:
    """They change nothing, and what comes behind them is done."""
    pair = Pair()
    store(pair.evictor, DIGESTS)
    stored = Stored(pages=((DIGESTS[1], OTHER_NAMESPACE, 0),), coverage=FULL)
    wrong = encode_event(Committed(namespace=OTHER_NAMESPACE, stored=stored))
    good = encode_event(Leased(lease_id="b-1", last=DIGESTS[2], ttl_s=1))
    unknown = encode_event(Leased(lease_id="b-2", last=bytes(32), ttl_s=1))
    pair.followers[0].follow(wrong + b"\x63\0\0\0\0" + unknown + good, now_s=0)
    assert pair.followers[0].num_ignored == 2
    assert pair.evictor.elsewhere.path(DIGESTS[2]) == DIGESTS
    assert pair.evictor.num_leases == 2
    pair.evictor.check_integrity()


def test_pages_that_hang_below_themselves_end_a_path() -> None:
    """Doomed pages and known ones may form a ring that neither forms alone."""
    pair = Pair()
    first, second = DIGESTS[:2]
    store(pair.evictor, (first, second), namespace=NAMESPACE)
    pair.evictor.evict(Everything(), now_s=0, dry_run=False)
    pair.evictor.unlinked([first])
    pair.evictor.commit(NAMESPACE, [(first, second, 0)], FULL, now_s=0)
    assert set(pair.evictor.elsewhere.path(first)) == {first, second}
