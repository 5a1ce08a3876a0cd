"""What is too much to be done at once: done in pieces, between which others are served."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from hicache import contents
from hicache.cache import PrefixCache
from hicache.changes import Change, ChangeKind
from hicache.selection import Everything, Prompt
from tests.cache_samples import OTHER_NAMESPACE, PAGE_BYTES, restore_pins, store
from tests.page_samples import NAMESPACE, chain

PROMPTS = tuple(chain(6, name=str(number)) for number in range(10))
NUM_PAGES = 60
PIECE = 7


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "MOST_PAGES", PIECE)
    monkeypatch.setattr(contents, "MOST_DROPPED", PIECE)


@pytest.fixture
def heard() -> list[Change]:
    """Return where changes are noted."""
    return []


@pytest.fixture
def cache(heard: list[Change]) -> PrefixCache:
    """Return a cache of some prompts, as yet without a limit."""
    cache = PrefixCache(name="a", budget_bytes=0, on_change=heard.append)
    for prompt in PROMPTS:
        store(cache, prompt)
    return cache


def limit(cache: PrefixCache, num_pages: int) -> None:
    """Let there be room for so many pages."""
    cache._contents.bounds.budget_bytes = num_pages * PAGE_BYTES


def pieces(cache: PrefixCache) -> Iterator[int]:
    """Do all that is to be done; yield how many pages are left after each piece."""
    while cache.is_over:
        cache.go_on(0)
        cache.check_integrity()
        yield cache.num_pages


def test_the_budget_is_kept_piece_by_piece(cache: PrefixCache, heard: list[Change]) -> None:
    """A replica that becomes the one that evicts may have a million pages too many."""
    heard.clear()
    limit(cache, 13)
    cache.tick(0)
    assert cache.num_pages == NUM_PAGES - PIECE
    left = [NUM_PAGES - PIECE, *pieces(cache)]
    assert left[-1] == 13
    assert max(before - after for before, after in itertools.pairwise(left)) == PIECE
    assert max(change.num_pages for change in heard) == PIECE
    assert sum(change.num_pages for change in heard) == cache.num_evicted_pages == NUM_PAGES - 13
    assert [cache.peek(prompt) for prompt in PROMPTS] == [0] * 7 + [1, 6, 6]


def test_a_quota_is_kept_piece_by_piece_before_the_budget(cache: PrefixCache) -> None:
    """Its leaves are looked for first, and nobody else's pages go meanwhile."""
    other = chain(5, name="other")
    store(cache, other, namespace=OTHER_NAMESPACE)
    cache.match(PROMPTS[0], lease_ttl_s=0, now_s=0)
    limit(cache, 20)
    cache.set_quota(NAMESPACE, 8 * PAGE_BYTES, now_s=0)
    assert cache.num_pages == NUM_PAGES + 5
    assert list(pieces(cache))[-1] == 8 + 5
    assert (cache.peek(PROMPTS[0]), cache.peek(other)) == (6, 5)


def test_others_may_change_anything_between_two_pieces(cache: PrefixCache) -> None:
    """Leases, pins, stores and losses: what is held stays, and the limit is kept in the end."""
    rng = random.Random(3)  # noqa: S311 - a fixed order, not a secret
    limit(cache, 9)
    cache.set_quota(OTHER_NAMESPACE, 2 * PAGE_BYTES, now_s=0)
    leased, pinned = PROMPTS[8][:3], PROMPTS[9][:2]
    cache.tick(0)
    cache.match(leased, lease_ttl_s=60, now_s=0)
    cache.pin(Prompt(digests=pinned), until_s=None, now_s=0, dry_run=False)
    for number, _ in enumerate(itertools.islice(pieces(cache), 40)):
        store(cache, chain(3, name=f"late {number}")[: rng.randint(1, 3)])
        store(cache, chain(3, name=f"other {number}"), namespace=OTHER_NAMESPACE)
        cache.invalidate([rng.choice(PROMPTS[number % 8])])
        if number > 20:
            break
    list(pieces(cache))
    assert (cache.peek(leased), cache.peek(pinned)) == (3, 2)
    assert cache.num_bytes <= 9 * PAGE_BYTES
    assert cache._contents.index.namespaces[OTHER_NAMESPACE].num_bytes <= 2 * PAGE_BYTES


def test_nothing_is_tried_for_ever(cache: PrefixCache) -> None:
    """What is held stays over the limit, and that is no reason to go on."""
    cache.pin(Everything(), until_s=None, now_s=0, dry_run=False)
    limit(cache, 1)
    cache.tick(0)
    assert not cache.is_over
    cache.keep_limits(until_s=-1)
    cache.unpin(Everything(), now_s=0, dry_run=False)
    assert (cache.is_over, cache.num_pages) == (False, NUM_PAGES)


def test_pins_end_piece_by_piece(cache: PrefixCache, heard: list[Change]) -> None:
    """A million pins that were made together end together."""
    cache.pin(Everything(), until_s=5, now_s=0, dry_run=False)
    heard.clear()
    cache.tick(5)
    assert len(cache.all_pins.all()) == NUM_PAGES - PIECE
    while cache.is_over:
        cache.go_on(5)
        cache.check_integrity()
    assert cache.all_pins.all() == []
    assert {change.kind for change in heard} == {ChangeKind.UNPINNED}
    assert max(change.num_pages for change in heard) == PIECE


def test_what_was_forgotten_is_let_go_piece_by_piece(cache: PrefixCache) -> None:
    """To free a million pages takes long, and their place is taken meanwhile."""
    cache.evict(Prompt(digests=PROMPTS[0]), now_s=0, dry_run=False)
    cache.forget()
    assert (cache.num_pages, cache.known(), cache.is_over) == (0, set(), True)
    assert cache.doomed(9, now_s=100) == ()
    assert store(cache, PROMPTS[0]) == 6
    cache.go_on(0)
    assert cache.is_over
    list(pieces(cache))
    assert (cache.peek(PROMPTS[0]), cache.num_pages) == (6, 6)


def test_pins_are_restored_while_others_go_on(cache: PrefixCache) -> None:
    """Pages come and go between two steps, and pins end; then they are those that were given."""
    cache.pin(Prompt(digests=PROMPTS[0]), until_s=5, now_s=0, dry_run=False)
    cache.pin(Prompt(digests=PROMPTS[1]), until_s=None, now_s=0, dry_run=False)
    late = chain(2, name="late")
    wanted: dict[bytes, float | None] = {PROMPTS[1][0]: None, PROMPTS[2][0]: 9.0, late[0]: None}
    steps = cache.all_pins.restoring(wanted, now_s=0)
    next(steps)
    cache.tick(5)
    cache.invalidate([PROMPTS[2][0]])
    store(cache, late)
    for _ in steps:
        cache.check_integrity()
    assert dict(cache.all_pins.all()) == wanted
    num_ends = len(cache._contents.pins._ends)
    restore_pins(cache, list(wanted.items()))
    assert len(cache._contents.pins._ends) == num_ends
    cache.tick(9)
    assert dict(cache.all_pins.all()) == {PROMPTS[1][0]: None, late[0]: None}
