"""What the pages of attached workers lie in, by name. Pure.

A worker keeps its pool, and what it holds, from route to route as long as their sizes agree; a Join
with another number of pages makes a new one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler.formation import Formation


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    pool_id: str
    num_pages: int


class PoolNames:
    """Owner of the names, as the last Join of each worker has made its pool."""

    def __init__(self) -> None:
        """Begin without pools."""
        self._pools: dict[str, _Pool] = {}

    def join(self, route: Formation) -> None:
        """Name the pools of a route anew that lose their contents by its Joins."""
        for worker_id in route.worker_ids:
            pool = self._pools.get(worker_id)
            if pool is None or pool.num_pages != route.num_pages:
                pool_id = f"{worker_id}/{route.epoch}"
                self._pools[worker_id] = _Pool(pool_id=pool_id, num_pages=route.num_pages)

    def forget(self, worker_id: str) -> None:
        """Forget a worker's pool, if it has one."""
        self._pools.pop(worker_id, None)

    def of(self, worker_ids: Sequence[str]) -> tuple[str, ...]:
        """Return the names of workers that have joined."""
        return tuple(self._pools[each].pool_id for each in worker_ids)
