"""Which pages an admin means."""

from __future__ import annotations

import pytest

from chunkmesh.coverage import Coverage, layer_mask
from chunkmesh.errors import InvalidRequest, NotFound
from hicache.cache import PrefixCache
from hicache.selection import Below, Everything, Idle, InNamespace, Prompt, Selection
from tests.cache_samples import OTHER_NAMESPACE, store
from tests.page_samples import NAMESPACE, chain

TRUNK = chain(4)
TWIG = chain(2, name="twig")
OTHER = chain(2, name="other")
PART = Coverage(layers=layer_mask(0, 1), model_layers=4, layer_bytes=10)


@pytest.fixture
def cache() -> PrefixCache:
    """A trunk of four pages with a twig at the second, and another namespace."""
    cache = PrefixCache(name="a", budget_bytes=0)
    store(cache, TRUNK, now_s=0)
    twig = [(TWIG[0], TRUNK[1], 0), (TWIG[1], TWIG[0], 0)]
    cache.commit(NAMESPACE, twig, PART, now_s=10)
    store(cache, OTHER, namespace=OTHER_NAMESPACE, now_s=20)
    return cache


def chosen(cache: PrefixCache, selection: Selection) -> tuple[bytes, ...]:
    """Select at time 20."""
    return tuple(filter(None, cache.selecting(selection, now_s=20)))


def test_everything_comes_parents_first(cache: PrefixCache) -> None:
    """An export in this order can be imported as it comes."""
    order = chosen(cache, Everything())
    assert set(order) == {*TRUNK, *TWIG, *OTHER}
    for digests in (TRUNK, OTHER, (TRUNK[1], *TWIG)):
        assert sorted(digests, key=order.index) == list(digests)


def test_a_page_is_named_by_the_start_of_its_digest(cache: PrefixCache) -> None:
    """Nobody types 64 digits."""
    for length in (4, 9, 32):
        assert chosen(cache, Below(prefix=TRUNK[2][:length])) == TRUNK[2:]
    assert set(chosen(cache, Below(prefix=TRUNK[1]))) == {*TRUNK[1:], *TWIG}


def test_a_start_that_names_no_page_is_not_found(cache: PrefixCache) -> None:
    """Status 3 of the command line."""
    with pytest.raises(NotFound, match="00000000"):
        chosen(cache, Below(prefix=bytes(4)))


def test_a_start_that_names_several_pages_is_refused(cache: PrefixCache) -> None:
    """Deleting the wrong one would be worse than asking again."""
    twins = [bytes(4) + end * 28 for end in (b"\1", b"\2")]
    for twin in twins:
        cache.commit(NAMESPACE, [(twin, NAMESPACE, 0)], PART, now_s=0)
    with pytest.raises(InvalidRequest, match="2 pages"):
        chosen(cache, Below(prefix=bytes(4)))
    assert chosen(cache, Below(prefix=twins[1][:5])) == (twins[1],)
    cache.invalidate([twins[1]])
    assert chosen(cache, Below(prefix=bytes(4))) == (twins[0],)


@pytest.mark.parametrize("length", [0, 3, 33])
def test_a_start_of_a_wrong_length_is_refused(cache: PrefixCache, length: int) -> None:
    """Three bytes name a page by luck only."""
    with pytest.raises(InvalidRequest, match=f"{length} bytes"):
        chosen(cache, Below(prefix=bytes(length)))


def test_a_prompt_is_its_known_pages_and_no_others(cache: PrefixCache) -> None:
    """Partial pages are there too; what follows a hole is not meant."""
    assert chosen(cache, Prompt(digests=(*TRUNK[:2], *TWIG))) == (*TRUNK[:2], *TWIG)
    assert chosen(cache, Prompt(digests=(*TRUNK[:1], *TRUNK[2:]))) == TRUNK[:1]
    assert chosen(cache, Prompt(digests=(bytes(32), *TRUNK))) == ()


def test_a_namespace_is_all_its_pages(cache: PrefixCache) -> None:
    """Of one that has none, none."""
    assert chosen(cache, InNamespace(namespace=OTHER_NAMESPACE)) == OTHER
    assert chosen(cache, InNamespace(namespace=bytes(32))) == ()


def test_idle_pages_are_those_that_nothing_touched(cache: PrefixCache) -> None:
    """A match touches as a store does."""
    assert set(chosen(cache, Idle(idle_s=10))) == {*TRUNK, *TWIG}
    cache.match(TRUNK[:2], lease_ttl_s=0, now_s=15)
    assert set(chosen(cache, Idle(idle_s=10))) == {*TRUNK[2:], *TWIG}


def test_a_chosen_page_stays_while_another_hangs_below(cache: PrefixCache) -> None:
    """Deleting one prompt must not cut off another that shares its beginning."""
    removal = cache.evict(Prompt(digests=TRUNK), now_s=20, dry_run=False)
    assert (removal.num_pages, removal.num_held_pages) == (2, 2)
    assert set(chosen(cache, InNamespace(namespace=NAMESPACE))) == {*TRUNK[:2], *TWIG}
