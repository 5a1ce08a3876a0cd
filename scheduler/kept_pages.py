"""What workers hold of prompts while no route stands. Pure.

A route of the same memory on every stage finds it again; any other route nothing.
"""

from __future__ import annotations

from scheduler.tiers import Tiers


class KeptPages:
    """Owner of the pages of the route that was lost last."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._pool_ids: tuple[str, ...] = ()
        self._tiers: Tiers | None = None

    def keep(self, pool_ids: tuple[str, ...], tiers: Tiers) -> None:
        """Take the pages of a lost route, whose pools have these names."""
        tiers.drop_holds()
        self._pool_ids, self._tiers = pool_ids, tiers

    def take(self, pool_ids: tuple[str, ...]) -> Tiers | None:
        """Return the pages of these pools, if their names are known, and forget what there is."""
        is_same = bool(pool_ids) and pool_ids == self._pool_ids
        tiers = self._tiers if is_same else None
        self.forget()
        return tiers

    def forget(self) -> None:
        """Forget what there is."""
        self._pool_ids, self._tiers = (), None
