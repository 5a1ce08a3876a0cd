"""What the devices hold while no route stands. Pure.

A route of the same memory on every stage finds it again; any other route nothing.
"""

from __future__ import annotations

from scheduler.pages import PageAllocator


class KeptPages:
    """Owner of the pages of the route that was lost last."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._pool_ids: tuple[str, ...] = ()
        self._pages: PageAllocator | None = None

    def keep(self, pool_ids: tuple[str, ...], pages: PageAllocator) -> None:
        """Take the pages of a lost route, whose pools have these names."""
        pages.drop_holds()
        self._pool_ids, self._pages = pool_ids, pages

    def take(self, pool_ids: tuple[str, ...]) -> PageAllocator | None:
        """Return the pages of these pools, if their names are known, and forget what there is."""
        is_same = bool(pool_ids) and pool_ids == self._pool_ids
        pages = self._pages if is_same else None
        self.forget()
        return pages

    def forget(self) -> None:
        """Forget what there is."""
        self._pool_ids, self._pages = (), None
