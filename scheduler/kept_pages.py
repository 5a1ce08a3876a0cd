"""What workers hold of prompts of routes that were lost. Pure.

A route of the same memory on every stage finds it again. One that has the memory of some stages
only finds what those hold; the others can load their part. What a route is formed of holds nothing
for others from then on.
"""

from __future__ import annotations

from scheduler.events import RouteFormed
from scheduler.tiers import Tiers

_MAX_KEPT = 8
"""Lost routes that are remembered, the last ones: workers of others are likely to be gone."""


class KeptPages:
    """Owner of the pages of lost routes."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._by_pools: dict[tuple[str, ...], Tiers] = {}
        """By the names of the stages' pools; the last lost at the end."""

    def keep(self, pool_ids: tuple[str, ...], tiers: Tiers) -> None:
        """Take the pages of a lost route, whose pools have these names."""
        if not pool_ids:
            return
        tiers.drop_holds()
        self._by_pools[pool_ids] = tiers
        if len(self._by_pools) > _MAX_KEPT:
            del self._by_pools[next(iter(self._by_pools))]

    def take(self, formed: RouteFormed) -> Tiers | None:
        """Return the pages that most stages of a new route still hold, if any do.

        Forget all that its pools hold of other routes.
        """
        pool_ids, taken = formed.pool_ids, set(formed.pool_ids)
        like = [
            names
            for names, kept in self._by_pools.items()
            if _lost(names, pool_ids) is not None and kept.device.num_pages == formed.num_pages
        ]
        best = min(like, key=lambda names: len(_lost(names, pool_ids) or ()), default=None)
        tiers = None if best is None else self._by_pools[best]
        lost = None if best is None else _lost(best, pool_ids)
        self._by_pools = {
            names: kept for names, kept in self._by_pools.items() if taken.isdisjoint(names)
        }
        if tiers is not None and lost:
            tiers.lose(lost, num_host_pages=formed.num_host_pages)
        return tiers

    def forget(self) -> None:
        """Forget what there is."""
        self._by_pools.clear()


def _lost(before: tuple[str, ...], now: tuple[str, ...]) -> frozenset[int] | None:
    """Return the stages whose pool is another one; None if those are all, or others altogether."""
    if len(before) != len(now):
        return None
    lost = frozenset(stage for stage, pool_id in enumerate(now) if before[stage] != pool_id)
    return None if len(lost) == len(now) else lost
