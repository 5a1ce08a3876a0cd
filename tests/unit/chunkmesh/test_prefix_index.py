"""The index of stored pages."""

from __future__ import annotations

import pytest

from chunkmesh.coverage import Coverage, layer_mask
from chunkmesh.errors import InvalidRequest, InvariantViolated
from chunkmesh.prefix_index import PrefixIndex
from tests.page_samples import NAMESPACE, chain, parents


def covered(first: int = 0, last: int = 4, *, layer_bytes: int = 10) -> Coverage:
    """Layers [first, last) of a model of four."""
    return Coverage(layers=layer_mask(first, last), model_layers=4, layer_bytes=layer_bytes)


def store(
    index: PrefixIndex, digests: tuple[bytes, ...], coverage: Coverage | None = None
) -> list[bool]:
    """Cover a prompt's pages."""
    return [
        index.cover(digest, parent, coverage or covered())
        for digest, parent in zip(digests, parents(digests), strict=True)
    ]


def test_a_page_is_visible_once_all_layers_are_covered_by_any_split() -> None:
    """Two workers with a 2-way split and one of a 3-way split write the same page."""
    index, (page,) = PrefixIndex(), chain(1)
    assert store(index, (page,), covered(0, 2)) == [False]
    assert store(index, (page,), covered(1, 3)) == [False]
    assert (index.match([page]), index.num_pages, index.num_partial_pages) == (0, 0, 1)
    assert store(index, (page,), covered(2, 4)) == [True]
    assert (index.match([page]), index.num_pages, index.num_partial_pages) == (1, 1, 0)
    assert index.num_bytes == 40


def test_a_match_ends_at_the_first_hole() -> None:
    """O18: later pages never move up."""
    index, digests = PrefixIndex(), chain(6)
    store(index, digests[:2])
    store(index, digests[2:3], covered(0, 2))
    for digest, parent in zip(digests[3:], digests[2:], strict=False):
        index.cover(digest, parent, covered())
    assert index.match(digests) == 2


def test_a_page_whose_parent_comes_later_is_kept() -> None:
    """A rebuild finds pages in any order."""
    index, digests = PrefixIndex(), chain(3)
    for digest, parent in reversed(list(zip(digests, parents(digests), strict=True))):
        assert index.match(digests) == 0
        index.cover(digest, parent, covered())
    assert index.match(digests) == 3


def test_a_page_of_another_chain_does_not_continue_a_match() -> None:
    """Digests that do not hang together are no prefix."""
    index, ours, other = PrefixIndex(), chain(2), chain(2, name="other")
    store(index, ours)
    store(index, other)
    assert index.match([ours[0], other[1]]) == 1


def test_invalidation_takes_everything_below() -> None:
    """Pages behind a missing one cannot be reached any more."""
    index, digests = PrefixIndex(), chain(4)
    store(index, digests)
    assert digests[2:] == index.invalidate(digests[2])
    assert (index.match(digests), index.num_bytes) == (2, 80)
    assert index.invalidate(digests[2]) == ()
    index.check_integrity()


def test_eviction_takes_the_end_of_a_chain_first() -> None:
    """O21: D before C before B before A."""
    index, digests = PrefixIndex(), chain(4)
    store(index, digests)
    index.match(digests)
    assert digests[:0:-1] == index.evict(120)
    assert index.match(digests) == 1


def test_the_last_page_of_a_match_is_locked_too() -> None:
    """O21: locking only its ancestors let the matched page go under a running request."""
    index, digests = PrefixIndex(), chain(4)
    store(index, digests)
    lock = index.lock(digests)
    assert index.evict(40) == ()
    index.unlock(lock)
    assert (digests[3],) == index.evict(40)
    index.check_integrity()


def test_a_locked_prefix_leaves_the_rest_evictable() -> None:
    """A lease on a short match must not hold the long tail of another prompt."""
    index, digests = PrefixIndex(), chain(4)
    store(index, digests)
    index.lock(digests[:2])
    assert (digests[3], digests[2]) == index.evict(1000)


def test_the_least_recently_used_branch_goes_first() -> None:
    """A match protects its pages by recency, not only while it is leased."""
    index, old, new = PrefixIndex(), chain(2, name="a"), chain(2, name="b")
    store(index, old)
    store(index, new)
    index.match(old)
    assert (new[1], new[0], old[1]) == index.evict(101)


def test_a_lock_outlives_the_page() -> None:
    """A damaged page is forgotten while leased, stored again, and the old lease ends."""
    index, digests = PrefixIndex(), chain(1)
    store(index, digests)
    lock = index.lock(digests)
    index.invalidate(digests[0])
    store(index, digests)
    index.unlock(lock)
    index.check_integrity()
    assert digests == index.evict(1)


def test_a_lock_ends_once() -> None:
    """A second unlock would free somebody else's page."""
    index, digests = PrefixIndex(), chain(1)
    store(index, digests)
    lock = index.lock(digests)
    index.unlock(lock)
    with pytest.raises(InvariantViolated):
        index.unlock(lock)


def test_contradictions_are_refused() -> None:
    """A digest fixes parent and model; anything else is a mistake of the caller."""
    index, (page, other) = PrefixIndex(), chain(2)
    store(index, (page,))
    with pytest.raises(InvalidRequest, match="named"):
        index.cover(page, other, covered())
    with pytest.raises(InvalidRequest, match="5 layers"):
        index.cover(page, NAMESPACE, Coverage(layers=1, model_layers=5, layer_bytes=1))
    with pytest.raises(InvalidRequest, match="own parent"):
        index.cover(other, other, covered())
    index.check_integrity()


def test_only_matches_count_as_hits() -> None:
    """An admin's look must not change what is evicted."""
    index, digests = PrefixIndex(), chain(2)
    store(index, digests)
    index.match(digests)
    assert (index.peek(digests), index.match(digests)) == (2, 2)
    assert [index.info(digest).num_hits for digest in digests] == [2, 2]
    assert index.info(NAMESPACE).layers == 0


def test_clear_forgets_everything_and_old_locks_still_end() -> None:
    """Redis was flushed while requests hold leases."""
    index, digests = PrefixIndex(), chain(3)
    store(index, digests)
    lock = index.lock(digests)
    index.clear()
    index.unlock(lock)
    assert (index.match(digests), index.num_pages, index.num_bytes) == (0, 0, 0)
    index.check_integrity()
