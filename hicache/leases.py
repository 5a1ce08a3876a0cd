"""Leases: time-limited locks on matched pages. Pure; time enters as now_s."""

from __future__ import annotations

import dataclasses

from chunkmesh.prefix_index import PageLock

MAX_TTL_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
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

    def __len__(self) -> int:
        return len(self._leases)

    def take(self, lock: PageLock, *, ttl_s: float, now_s: float) -> str:
        """Hold a lock for ttl_s, at most MAX_TTL_S; return the lease's id."""
        self._serial += 1
        lease_id = f"{self._name}-{self._serial}"
        self._leases[lease_id] = _Lease(lock=lock, ends_s=now_s + min(ttl_s, MAX_TTL_S))
        return lease_id

    def release(self, lease_id: str) -> PageLock | None:
        """End a lease; None if it has ended already."""
        lease = self._leases.pop(lease_id, None)
        return None if lease is None else lease.lock

    def expire(self, now_s: float) -> tuple[PageLock, ...]:
        """End the leases whose time is over; return their locks."""
        ended = [lease_id for lease_id, lease in self._leases.items() if lease.ends_s <= now_s]
        return tuple(self._leases.pop(lease_id).lock for lease_id in ended)

    def clear(self) -> None:
        """End all leases; their locks need no unlocking since the index is cleared too."""
        self._leases.clear()
