"""The tree as people look at it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from chunkmesh.coverage import Coverage, layer_mask
from chunkmesh.errors import NotFound
from hicache.cache import PrefixCache
from hicache.runs import PickedRuns, Run
from hicache.selection import Prompt
from tests.cache_samples import OTHER_NAMESPACE, PAGE_BYTES, store
from tests.page_samples import NAMESPACE, chain

TRUNK = chain(4)
TWIG = chain(3, name="twig")
OTHER = chain(2, name="other")
PART = Coverage(layers=layer_mask(1, 3), model_layers=4, layer_bytes=10)


class RunList(NamedTuple):
    """Runs in the order asked for, and how many the limit cut off."""

    runs: tuple[Run, ...]
    num_left_off: int


@pytest.fixture
def cache() -> PrefixCache:
    """A trunk that forks after two pages, one arm in part, and another namespace."""
    cache = PrefixCache(name="a", budget_bytes=0)
    store(cache, TRUNK, priority=1, now_s=0)
    arm = [(TWIG[0], TRUNK[1], 5), (TWIG[1], TWIG[0], 0), (TWIG[2], TWIG[1], 0)]
    cache.commit(NAMESPACE, arm, PART, now_s=10)
    store(cache, OTHER, namespace=OTHER_NAMESPACE, now_s=20)
    cache.match(TRUNK[:3], lease_ttl_s=9, now_s=22)
    cache.pin(Prompt(digests=OTHER[:1]), until_s=None, now_s=22, dry_run=False)
    return cache


def listed(cache: PrefixCache, **asked: Any) -> RunList:
    """List at time 30."""
    picked = PickedRuns(limit=asked.pop("limit", 100), order=asked.pop("order", "tree"))
    wanted: dict[str, Any] = {"namespace": None, "below": None, "max_depth": 0}
    for run in cache.runs(**(wanted | asked), now_s=30):
        picked.add(run)
    num_left_off = picked.num_left_off
    return RunList(runs=tuple(picked.taking())[::-1], num_left_off=num_left_off)


def firsts(runs: RunList) -> list[bytes]:
    """Return where the runs begin."""
    return [run.first_digest for run in runs.runs]


def test_a_run_tells_what_its_pages_have_in_common(cache: PrefixCache) -> None:
    """All that the contract asks for, of the trunk up to the fork."""
    assert listed(cache).runs[0] == Run(
        namespace=NAMESPACE,
        first_digest=TRUNK[0],
        last_digest=TRUNK[1],
        first_page=0,
        num_pages=2,
        depth=0,
        num_children=2,
        num_bytes=2 * PAGE_BYTES,
        layers=0b1111,
        visible=True,
        num_hits=1,
        idle_s=8,
        num_leased_pages=2,
        num_pinned_pages=0,
        priority=1,
    )


def test_branches_follow_their_trunk(cache: PrefixCache) -> None:
    """A tree can be drawn as it comes."""
    runs = listed(cache)
    assert firsts(runs) == [TRUNK[0], TRUNK[2], TWIG[0], OTHER[0]]
    assert [run.depth for run in runs.runs] == [0, 1, 1, 0]
    assert [run.first_page for run in runs.runs] == [0, 2, 2, 0]
    assert [run.num_leased_pages for run in runs.runs] == [2, 1, 0, 0]
    assert [run.num_pinned_pages for run in runs.runs] == [0, 0, 0, 1]


def test_a_run_in_part_is_of_no_use_to_a_request(cache: PrefixCache) -> None:
    """Nor is anything below it, however complete."""
    (end,) = chain(1, name="end")
    cache.commit(NAMESPACE, [(end, TWIG[0], 0)], PART, now_s=30)
    full = Coverage(layers=0b1111, model_layers=4, layer_bytes=10)
    cache.commit(NAMESPACE, [(end, TWIG[0], 0)], full, now_s=30)
    seen = {run.first_digest: run for run in listed(cache).runs}
    assert (seen[TWIG[0]].layers, seen[TWIG[0]].priority) == (0b0110, 5)
    assert (seen[end].layers, seen[end].visible, seen[TRUNK[2]].visible) == (0b1111, False, True)


def test_a_listing_can_be_of_one_namespace(cache: PrefixCache) -> None:
    """One tenant's tree."""
    assert firsts(listed(cache, namespace=OTHER_NAMESPACE)) == [OTHER[0]]
    assert firsts(listed(cache, namespace=bytes(32))) == []


def test_a_listing_can_begin_at_a_page(cache: PrefixCache) -> None:
    """In the middle of a run too; its place in the prompt stays known."""
    (run,) = listed(cache, below=TWIG[1][:6]).runs
    assert (run.first_page, run.num_pages, run.depth, run.visible) == (3, 2, 0, False)
    assert firsts(listed(cache, below=TRUNK[1])) == [TRUNK[1], TRUNK[2], TWIG[0]]
    assert firsts(listed(cache, below=TRUNK[1], namespace=OTHER_NAMESPACE)) == []
    with pytest.raises(NotFound):
        listed(cache, below=bytes(5))


def test_a_listing_can_end_at_a_depth(cache: PrefixCache) -> None:
    """A look from far away; the number of branches still shows."""
    runs = listed(cache, max_depth=1)
    assert firsts(runs) == [TRUNK[0], OTHER[0]]
    assert (runs.runs[0].num_children, runs.num_left_off) == (2, 0)


def test_a_limit_says_what_it_cut_off(cache: PrefixCache) -> None:
    """Nobody takes a part for the whole."""
    runs = listed(cache, limit=3)
    assert (len(runs.runs), runs.num_left_off) == (3, 1)


@pytest.mark.parametrize(
    ("order", "first", "last"),
    [
        ("hits", TRUNK[0], OTHER[0]),
        ("recent", TRUNK[0], TWIG[0]),
        ("bytes", TRUNK[0], TWIG[0]),
    ],
)
def test_runs_come_in_the_order_asked_for(
    cache: PrefixCache, order: str, first: bytes, last: bytes
) -> None:
    """The hottest, the newest or the largest; equals as in the tree."""
    told = firsts(listed(cache, order=order))
    assert (told[0], told[-1], len(told)) == (first, last, 4)


def test_a_run_whose_beginning_is_missing_does_not_start_at_page_0() -> None:
    """Commits came out of order, or the page above expired in Redis."""
    cache = PrefixCache(name="a", budget_bytes=0)
    cache.commit(NAMESPACE, [(TRUNK[3], TRUNK[2], 0)], PART, now_s=0)
    (run,) = listed(cache).runs
    assert (run.first_page, run.visible) == (1, False)


def test_a_walk_bears_what_comes_and_goes(cache: PrefixCache) -> None:
    """Between two slices of a listing requests store pages, and pages are evicted."""
    walk = cache.runs(namespace=None, below=None, max_depth=0, now_s=30)
    assert TRUNK[0] == next(walk).first_digest
    store(cache, chain(2, name="new"), now_s=30)
    cache.invalidate(TRUNK[:1])
    cache.forget()
    assert {NAMESPACE, OTHER_NAMESPACE} >= {run.namespace for run in walk}


def test_a_root_that_finds_its_parent_is_not_listed_twice(cache: PrefixCache) -> None:
    """Loose pages hang below a page that comes while they are waited for."""
    missing, loose = chain(2, name="loose")
    cache.commit(NAMESPACE, [(loose, missing, 0)], PART, now_s=30)
    walk = cache.runs(namespace=None, below=None, max_depth=0, now_s=30)
    seen = [next(walk).first_digest]
    cache.commit(NAMESPACE, [(missing, NAMESPACE, 0)], PART, now_s=30)
    seen += [run.first_digest for run in walk]
    assert len(seen) == len(set(seen))
    assert loose not in seen
