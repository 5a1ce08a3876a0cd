"""What workers hold of prompts of routes that were lost. Pure.

A route of the same memory on every stage finds it again; any other route nothing. What a route is
formed of holds nothing for others from then on.
"""

from __future__ import annotations

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

    def take(self, pool_ids: tuple[str, ...]) -> Tiers | None:
        """Return the pages of these pools, if there are any; forget all that they hold."""
        tiers = self._by_pools.pop(pool_ids, None)
        taken = set(pool_ids)
        self._by_pools = {
            names: kept for names, kept in self._by_pools.items() if taken.isdisjoint(names)
        }
        return tiers

    def forget(self) -> None:
        """Forget what there is."""
        self._by_pools.clear()
