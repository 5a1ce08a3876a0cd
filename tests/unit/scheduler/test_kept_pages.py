"""KeptPages: which lost route's pages a new one finds, and for how long they are remembered."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

from scheduler.events import RouteFormed
from scheduler.kept_pages import _MAX_KEPT, KeptPages
from scheduler.tiers import Tiers


@dataclasses.dataclass(slots=True)
class _Device:
    num_pages: int


@dataclasses.dataclass(slots=True)
class _Tiers:
    """Stands for the pages of one route."""

    device: _Device = dataclasses.field(default_factory=lambda: _Device(8))
    is_held: bool = True
    lost: frozenset[int] | None = None

    def drop_holds(self) -> None:
        """Note it."""
        self.is_held = False

    def lose(self, stages: frozenset[int], *, num_host_pages: int) -> None:
        """Note which stages hold nothing of it."""
        assert 3 == num_host_pages
        self.lost = stages


def _keep(kept: KeptPages, *pool_ids: str, num_pages: int = 8) -> _Tiers:
    tiers = _Tiers(_Device(num_pages))
    kept.keep(pool_ids, cast("Tiers", tiers))
    return tiers


def _take(kept: KeptPages, *pool_ids: str) -> Any:
    formed = RouteFormed(
        epoch=9, num_stages=len(pool_ids), num_pages=8, num_host_pages=3, pool_ids=pool_ids
    )
    return kept.take(formed)


def test_the_same_memory_has_all_of_it() -> None:
    """Nothing is computed again that the workers still hold; who read it has lost its route."""
    kept = KeptPages()
    tiers = _keep(kept, "a", "b")
    assert _take(kept, "a", "b") is tiers
    assert (False, None) == (tiers.is_held, tiers.lost)


def test_other_memory_in_a_stage_is_lost_there_and_only_there() -> None:
    """A page of the one that is gone would be read from whatever its successor holds."""
    kept = KeptPages()
    tiers = _keep(kept, "a", "b", "c")
    assert _take(kept, "a", "s", "c") is tiers
    assert frozenset({1}) == tiers.lost


def test_the_route_that_most_stages_hold_is_found() -> None:
    """Whichever was lost last."""
    kept = KeptPages()
    tiers = [_keep(kept, *pools) for pools in (("a", "x", "y"), ("a", "b", "z"), ("a", "w", "v"))]
    assert _take(kept, "a", "b", "c") is tiers[1]
    assert frozenset({2}) == tiers[1].lost


@pytest.mark.parametrize("pools", [("x", "y"), ("a",), ("a", "b", "c"), ("b", "a"), ()])
def test_other_memory_altogether_holds_nothing(pools: tuple[str, ...]) -> None:
    """Nor does that of a worker which holds other layers now."""
    kept = KeptPages()
    _keep(kept, "a", "b")
    assert _take(kept, *pools) is None


def test_pools_of_another_size_are_others() -> None:
    """Ids of pages would point beyond the end."""
    kept = KeptPages()
    _keep(kept, "a", "b", num_pages=9)
    assert _take(kept, "a", "b") is None


def test_what_a_route_is_formed_of_holds_nothing_for_others_any_more() -> None:
    """It overwrites its pages; those of other workers stay."""
    kept = KeptPages()
    _keep(kept, "a", "b")
    _keep(kept, "a", "c")
    other = _keep(kept, "d", "e")
    _take(kept, "a", "x")
    assert _take(kept, "y", "b") is None
    assert _take(kept, "z", "c") is None
    assert _take(kept, "d", "e") is other


def test_only_the_last_lost_routes_are_remembered() -> None:
    """Workers come and go for months; an old one is likely to be gone."""
    kept = KeptPages()
    tiers = [_keep(kept, f"a{index}", f"b{index}") for index in range(_MAX_KEPT + 1)]
    assert _take(kept, "a0", "b0") is None
    assert _take(kept, "a1", "b1") is tiers[1]


def test_what_is_flushed_is_found_no_more() -> None:
    """FlushCache forgets what workers of lost routes hold, too."""
    kept = KeptPages()
    _keep(kept, "a", "b")
    kept.forget()
    assert _take(kept, "a", "b") is None
