"""Leases: time-limited locks on matched pages. Pure; time enters as now_s."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable

from chunkmesh.indexed_page import PageLock

MAX_TTL_S = 3600.0


@dataclasses.dataclass(slots=True, kw_only=True)
class _Lease:
    lock: PageLock
    ends_s: float


class Leases:
    """Owner of all live leases."""

    def __init__(self, name: str) -> None:
        """Take a name that no other server, and no earlier start of this one, has."""
        self._name = name
        self._serial = 0
        self._leases: dict[str, _Lease] = {}
        self._ends: list[tuple[float, str]] = []
        """Heap; an entry counts only if the lease still ends then."""

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._leases

    def take(self, lock: PageLock, *, ttl_s: float, now_s: float) -> str:
        """Hold a lock for ttl_s, at most MAX_TTL_S; return the lease's id."""
        self._serial += 1
        lease_id = f"{self._name}-{self._serial}"
        self.adopt(lease_id, lock, ttl_s=ttl_s, now_s=now_s)
        return lease_id

    def adopt(self, lease_id: str, lock: PageLock, *, ttl_s: float, now_s: float) -> None:
        """Hold a lock under an id that another server gave and that is not live here."""
        self._leases[lease_id] = _Lease(lock=lock, ends_s=0.0)
        self._set_end(lease_id, now_s + min(ttl_s, MAX_TTL_S))

    def last_page(self, lease_id: str) -> bytes | None:
        """Return the last page of a live lease; None if it holds none."""
        lease = self._leases.get(lease_id)
        return lease.lock.pages[-1].digest if lease is not None and lease.lock.pages else None

    def rest_s(self, lease_id: str, now_s: float) -> float:
        """Return how long a lease still holds; 0 if it has ended."""
        lease = self._leases.get(lease_id)
        return 0.0 if lease is None else max(0.0, lease.ends_s - now_s)

    def own(self, now_s: float) -> list[tuple[str, float]]:
        """Return (id, how long it still holds) of the live leases that were given here."""
        prefix = f"{self._name}-"
        return [
            (lease_id, lease.ends_s - now_s)
            for lease_id, lease in self._leases.items()
            if lease_id.startswith(prefix) and lease.ends_s > now_s
        ]

    def renew(self, lease_ids: Iterable[str], *, ttl_s: float, now_s: float) -> tuple[str, ...]:
        """Hold leases for ttl_s from now on; return the ids of those that have ended."""
        ended: list[str] = []
        for lease_id in lease_ids:
            lease = self._leases.get(lease_id)
            if lease is None or lease.ends_s <= now_s:
                ended.append(lease_id)
            else:
                self._set_end(lease_id, now_s + min(ttl_s, MAX_TTL_S))
        return tuple(ended)

    def release(self, lease_id: str) -> PageLock | None:
        """End a lease; None if it has ended already."""
        lease = self._leases.pop(lease_id, None)
        return None if lease is None else lease.lock

    def expire(self, now_s: float) -> tuple[PageLock, ...]:
        """End the leases whose time is over; return their locks."""
        locks: list[PageLock] = []
        while self._ends and self._ends[0][0] <= now_s:
            ends_s, lease_id = heapq.heappop(self._ends)
            lease = self._leases.get(lease_id)
            if lease is not None and lease.ends_s == ends_s:
                locks.append(self._leases.pop(lease_id).lock)
        return tuple(locks)

    def clear(self) -> None:
        """End all leases; their locks need no unlocking since the index is cleared too."""
        self._leases.clear()
        self._ends.clear()

    def _set_end(self, lease_id: str, ends_s: float) -> None:
        self._leases[lease_id].ends_s = ends_s
        heapq.heappush(self._ends, (ends_s, lease_id))
