"""Pages that an admin wants kept."""

from __future__ import annotations

from hicache.cache import PrefixCache
from hicache.pins import Pins
from hicache.selection import Below, Everything, Prompt
from tests.cache_samples import PAGE_BYTES, restore_pins, store
from tests.page_samples import chain

DIGESTS = chain(3)


def filled() -> PrefixCache:
    """Return a cache that is full with one prompt."""
    cache = PrefixCache(name="a", budget_bytes=3 * PAGE_BYTES)
    store(cache, DIGESTS)
    return cache


def pin(cache: PrefixCache, num_pages: int, until_s: float | None = None) -> None:
    """Pin the first pages of the prompt."""
    chosen = Prompt(digests=DIGESTS[:num_pages])
    cache.pin(chosen, until_s=until_s, now_s=0, dry_run=False)


def test_pinned_pages_stay_and_the_rest_goes() -> None:
    """Neither the budget nor a hand takes them."""
    cache = filled()
    pin(cache, 2)
    store(cache, chain(3, name="other"))
    assert cache.peek(DIGESTS) == 2
    removal = cache.evict(Everything(), now_s=0, dry_run=False)
    assert (removal.num_held_pages, cache.peek(DIGESTS)) == (2, 2)


def test_a_dry_run_only_counts() -> None:
    """What would be pinned or unpinned, with bytes."""
    cache = filled()
    amount = cache.pin(Everything(), until_s=None, now_s=0, dry_run=True)
    assert (amount.num_pages, amount.num_bytes, cache.all_pins.all()) == (3, 3 * PAGE_BYTES, [])
    pin(cache, 2)
    amount = cache.unpin(Everything(), now_s=0, dry_run=True)
    assert (amount.num_pages, len(cache.all_pins.all())) == (2, 2)


def test_a_pin_ends_by_time() -> None:
    """A campaign's prompt is kept as long as the campaign."""
    cache = filled()
    pin(cache, 3, until_s=10)
    cache.tick(now_s=9)
    assert store(cache, chain(1, name="a")) == 0
    cache.tick(now_s=10)
    assert (cache.all_pins.all(), store(cache, chain(1, name="b"))) == ([], 1)
    cache.check_integrity()


def test_what_has_ended_protects_nothing_before_the_next_tick() -> None:
    """Whoever saw a pin or a lease end elsewhere may evict here at once."""
    cache = filled()
    pin(cache, 3, until_s=10)
    cache.match(DIGESTS, lease_ttl_s=9, now_s=0)
    for now_s, num_held_pages in ((8, 3), (9, 3), (10, 0)):
        removal = cache.evict(Everything(), now_s=now_s, dry_run=True)
        assert removal.num_held_pages == num_held_pages
    assert cache.unpin(Everything(), now_s=10, dry_run=False).num_pages == 0


def test_a_pin_that_has_ended_keeps_nothing_new_out() -> None:
    """A full cache takes a page as soon as the pins of the others are over."""
    cache = filled()
    pin(cache, 3, until_s=10)
    assert store(cache, chain(1, name="a")) == 0
    assert store(cache, chain(1, name="b"), now_s=10) == 1


def test_a_later_pin_replaces_an_earlier_one() -> None:
    """The end that was said last counts, sooner or later."""
    pins = Pins()
    pins.add([b"a", b"b"], 10)
    pins.add([b"a"], 20)
    pins.add([b"b"], None)
    assert pins.expire(10, most_pins=9) == ()
    pins.add([b"a"], 11)
    assert pins.expire(11, most_pins=9) == (b"a",)
    assert pins.all() == [(b"b", None)]


def test_an_unpinned_page_may_go_at_once() -> None:
    """The budget was exceeded only because of the pin."""
    cache = filled()
    pin(cache, 3)
    cache.elsewhere.hold("b-1", DIGESTS, ttl_s=1, now_s=0)
    assert cache.unpin(Below(prefix=DIGESTS[1]), now_s=0, dry_run=False).num_pages == 2
    assert cache.all_pins.all() == [(DIGESTS[0], None)]
    cache.tick(now_s=1)
    assert store(cache, chain(1, name="new")) == 1
    assert cache.peek(DIGESTS) == 2


def test_an_invalidation_takes_a_pinned_page_and_its_pin_waits() -> None:
    """A damaged page is no use; stored again it is kept again."""
    cache = filled()
    pin(cache, 3)
    assert cache.invalidate(DIGESTS[:1]) == 3
    cache.unlinked(cache.doomed(9, now_s=0))
    store(cache, DIGESTS)
    assert store(cache, chain(1, name="other")) == 0
    assert cache.peek(DIGESTS) == 3


def test_pins_are_restored_before_their_pages_come() -> None:
    """After a restart the budget must not take a page before its pin is known."""
    cache = PrefixCache(name="a", budget_bytes=3 * PAGE_BYTES)
    restore_pins(cache, [(DIGESTS[0], None), (DIGESTS[1], 50.0)])
    store(cache, DIGESTS)
    store(cache, chain(3, name="other"))
    assert cache.peek(DIGESTS) == 2
    restore_pins(cache, [(DIGESTS[0], None)])
    cache.check_integrity()
    assert cache.all_pins.all() == [(DIGESTS[0], None)]
    assert cache.evict(Everything(), now_s=0, dry_run=True).num_held_pages == 1


def test_unpinning_everything_ends_pins_of_pages_that_are_not_there() -> None:
    """Nothing is left that nobody can name."""
    cache = filled()
    pin(cache, 3)
    cache.invalidate(DIGESTS[2:])
    amount = cache.unpin(Everything(), now_s=0, dry_run=False)
    cache.all_pins.end_waiting(DIGESTS)
    assert (amount.num_pages, cache.all_pins.all()) == (2, [])
