"""What replicas tell each other, as plain values. Pure.

What a replica cannot do with an event it leaves: an unknown page, a lease that has ended.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from hicache.changes import ChangeKind, Stored, Summary


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Pages were stored."""

    namespace: bytes
    stored: Stored
    """At least one page."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """Pages left the index and will be unlinked by who tells it."""

    kind: ChangeKind
    """INVALIDATED, EVICTED or DELETED."""
    namespace: bytes
    digests: tuple[bytes, ...]
    """At least one."""
    num_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unlinked:
    """Pages are gone from Redis."""

    digests: tuple[bytes, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A match, or a change of pins or quotas, for watchers."""

    summary: Summary
    last: bytes | None
    """Last page of a match, so that its pages count as used."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """A lease was given, or renewed."""

    lease_id: str
    last: bytes
    """Its last page."""
    ttl_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """A lease was ended before its time."""

    lease_id: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """All pages were deleted."""

    num_pages: int
    num_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class KeptChanged:
    """Pins or quotas in Redis are others now."""


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """What a namespace stands for is in Redis now."""


@dataclasses.dataclass(frozen=True, slots=True)
class Joined:
    """A replica began to listen, and wants to know all live leases."""


@dataclasses.dataclass(frozen=True, slots=True)
class Compared:
    """A replica that has joined knows what Redis has.

    What was stored while it was away, and told to it in vain, nobody else knows.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """A replica could not tell what it did: only a scan finds out."""


Event: TypeAlias = (
    Committed
    | Gone
    | Unlinked
    | Told
    | Leased
    | Released
    | Cleared
    | KeptChanged
    | Described
    | Joined
    | Compared
    | Lost
)
