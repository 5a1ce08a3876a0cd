"""The names of pools: they stay as long as what the pools hold."""

from __future__ import annotations

from scheduler.formation import Formation
from scheduler.pool_names import PoolNames
from tests.hellos import hello


def _route(epoch: int, *, capacity: int) -> Formation:
    """Begin a route of two workers, the first of which has room for this many tokens."""
    stages = [hello("a", 0, 3, capacity=capacity), hello("b", 3, 6)]
    return Formation(epoch, stages, page_tokens=16, deadline_s=1.0)


def test_a_pool_of_the_same_size_is_the_same() -> None:
    """Its pages are found again on the next route."""
    names = PoolNames()
    for epoch in (1, 2):
        names.join(_route(epoch, capacity=160))
    assert ("a/1", "b/1") == names.of(["a", "b"])


def test_another_size_makes_other_pools() -> None:
    """Nothing of what was in the old ones may be taken for cached."""
    names = PoolNames()
    for epoch, capacity in enumerate((160, 80), start=1):
        names.join(_route(epoch, capacity=capacity))
    assert ("a/2", "b/2") == names.of(["a", "b"])


def test_a_worker_that_comes_back_has_another_pool() -> None:
    """It may have been started anew meanwhile; its neighbour's pages are still there."""
    names = PoolNames()
    names.join(_route(1, capacity=160))
    names.forget("a")
    names.join(_route(2, capacity=160))
    assert ("a/2", "b/1") == names.of(["a", "b"])
